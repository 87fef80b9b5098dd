"""A recorded run that is ready to answer: keyed under today's rules, indexed, shared by its replays."""

import gc
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from threading import Lock

from calls.keys.key import keyed, raw_digest_of
from calls.keys.profile import Profiles
from calls.model import Json, Request
from calls.route import route_of, target
from calls.websocket_messages import opening
from replay.misses.nearest import Finder, document
from replay.script import Index, RecordedExchange, index
from store.bundle.bundle import Bundle
from store.bundle.exchange_summary import Brief, brief
from store.bundle.rows_bundle import StoredRun


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
        told = "\n".join(entry.id for entry in self.index.entries)
        return hashlib.sha256(told.encode()).hexdigest()

    def fork_step(self, edited: int) -> int:
        """The last step that a fork can answer whose agent is told something else at the `edited` step: that one, what ran
        beside it, and tools that were asked before the next model was. Otherwise a tool that was asked for along with
        the edited one would be beyond the record, and blocked."""
        entries = self.index.entries
        start = next((place for place, entry in enumerate(entries) if entry.step == edited), None)
        if start is None:
            return edited
        brief, last = entries[start].brief, edited
        end = brief.started_at + (brief.ended_at or 0)
        for entry in islice(entries, start + 1, None):
            if entry.brief.started_at >= end and _is_model(entry.brief):
                break
            last = entry.step
        return last

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


def _is_model(one: Brief) -> bool:
    request = Request(method=one.method, url=one.url, http_version=one.http_version, headers=one.headers)
    return route_of(request).kind == "model"


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
    entries = bundle.entries
    briefs = entries.briefs() if isinstance(entries, StoredRun) else map(brief, entries)
    ordered = sorted(briefs, key=lambda one: (one.started_at, one.id))
    gaps = {
        gap.exchange: f"part of {'it' if gap.exchange else 'its run'} could not be recorded ({gap.reason})"
        for gap in bundle.gaps
    }
    make = partial(_recorded, profiles, rekeyed, profiles.told, gaps)
    last = len(ordered) if until_step is None else until_step
    steps = [make(step, one) for step, one in enumerate(ordered, 1) if from_step <= step <= last]
    return Recording(
        run=str(bundle.run["id"]),
        index=index(steps),
        profiles=profiles,
        rekeyed=rekeyed,
        over_http2=_over_http2(ordered),
    )


def _recorded(
    profiles: Profiles, rekeyed: bool, told: frozenset[str], gaps: Mapping[str | None, str], step: int, one: Brief
) -> RecordedExchange:
    # A WebSocket is found by its opening; its own key is of all that was said over it.
    if one.key is None or rekeyed or one.spoken:
        key, profile = _keyed(opening(one.exchange().request), profiles)
    else:
        key, profile = one.key, one.profile or ""
    return RecordedExchange(
        step=step,
        key=key,
        raw=raw_digest_of(one.method, one.url, one.headers, one.body),
        brief=one,
        actor=one.actor,
        recorded_key=one.key,
        gap=gaps.get(one.id),
        loose=gaps.get(None),
        told=profile in told,
    )


def _keyed(request: Request, profiles: Profiles) -> tuple[str, str]:
    made = keyed(request, profiles)
    return made.key, made.profile


def _over_http2(briefs: Iterable[Brief]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for one in briefs:
        authority, _, _ = target(one.url)
        found[authority] = found.get(authority, False) or one.http_version.startswith("HTTP/2")
    return found
