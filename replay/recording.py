"""A recorded run made ready to answer from: keyed under today's rules, indexed, shared by all its replays."""

import gc
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock

from calls.key import keyed, raw_digest
from calls.messages import opening
from calls.model import Json, Request
from calls.profile import Profiles
from calls.route import target
from replay import playback
from replay.nearest import Finder, document
from replay.script import Index, Recorded, index
from store.bundle import Bundle, Entry


@dataclass(kw_only=True)
class Recording:
    """A run, indexed. It does not change, but for what is made when it is first needed."""

    run: str
    index: Index
    profiles: Profiles
    rekeyed: bool
    """The run was recorded under other profiles than today's."""

    over_http2: Mapping[str, bool]
    """The authorities that were asked, and whether any request came over HTTP/2."""

    _making: Lock = field(init=False, repr=False, default_factory=Lock)

    @cached_property
    def digest(self) -> str:
        """Which exchanges these are. Equal digests have equal positions."""
        told = "\n".join(entry.exchange.id for entry in self.index.entries)
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def finder(self) -> Finder:
        """Looks for the nearest recorded call. Made at the first miss, on whatever thread asks first: a right replay
        never needs it."""
        with self._making:
            return self._finder

    @cached_property
    def _finder(self) -> Finder:
        return Finder(self.index.entries, self._document)

    def _document(self, request: Request) -> Json:
        return document(opening(request), self.profiles)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Make what stays without a collector that looks for garbage in it again and again: that is a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@undisturbed()
def recording(bundle: Bundle, profiles: Profiles, *, from_step: int = 1, until_step: int | None = None) -> Recording:
    """Make a run ready. Exchanges before a step may be left out, where an agent goes on from there; and those after one,
    where it is to go its own way from there."""
    rekeyed = bundle.profiles != profiles.digest
    ordered = sorted(bundle.entries, key=lambda entry: (entry.exchange.started_at, entry.exchange.id))
    make = partial(
        _recorded,
        profiles,
        rekeyed,
        {gap.exchange: f"part of it could not be recorded ({gap.reason})" for gap in bundle.gaps},
    )
    last = len(ordered) if until_step is None else until_step
    steps = [make(step, entry) for step, entry in enumerate(ordered, 1) if from_step <= step <= last]
    return Recording(
        run=str(bundle.run["id"]),
        index=index(steps),
        profiles=profiles,
        rekeyed=rekeyed,
        over_http2=_over_http2(entry.exchange.request for entry in ordered),
    )


def _recorded(profiles: Profiles, rekeyed: bool, gaps: Mapping[str | None, str], step: int, entry: Entry) -> Recorded:
    exchange, request = entry.exchange, opening(entry.exchange.request)
    told = entry.call.get("key") if entry.call else None
    # A WebSocket is found by its opening; its own key is of all that was said over it.
    if entry.call is None or told is None or rekeyed or request is not exchange.request:
        key, profile = _keyed(request, profiles)
    else:
        key, profile = told, entry.call.get("profile", "")
    return Recorded(
        step=step,
        key=key,
        raw=raw_digest(request),
        exchange=exchange,
        actor=exchange.actor,
        recorded_key=told,
        lacking=playback.lacking(exchange) or gaps.get(exchange.id),
        told=profile in profiles.told,
    )


def _keyed(request: Request, profiles: Profiles) -> tuple[str, str]:
    made = keyed(request, profiles)
    return made.key, made.profile


def _over_http2(requests: Iterable[Request]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for request in requests:
        authority, _, _ = target(request.url)
        found[authority] = found.get(authority, False) or request.http_version.startswith("HTTP/2")
    return found
