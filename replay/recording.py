"""A recorded run made ready to answer from: keyed under today's rules, indexed, shared by all its replays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from calls.key import keyed, raw_digest
from calls.model import Json, Request
from calls.profile import Profiles
from calls.route import target
from replay.nearest import Finder, document
from replay.script import Index, Recorded, index
from store.bundle import Bundle, Entry


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A run, indexed."""

    run: str
    index: Index
    profiles: Profiles
    rekeyed: bool
    """The run was recorded under other profiles than today's."""

    over_http2: Mapping[str, bool]
    """The authorities that were asked, and whether any request came over HTTP/2."""

    @cached_property
    def finder(self) -> Finder:
        """Looks for the nearest recorded call. Made at the first miss, on whatever thread asks: a right replay never
        needs it."""
        return Finder(self.index.entries, self._document)

    def _document(self, request: Request) -> Json:
        return document(request, self.profiles)


def recording(bundle: Bundle, profiles: Profiles, *, from_step: int = 1) -> Recording:
    """Make a run ready. Exchanges before a step may be left out: an agent goes on from there."""
    rekeyed = bundle.profiles != profiles.digest
    ordered = sorted(bundle.entries, key=lambda entry: (entry.exchange.started_at, entry.exchange.id))
    steps = [_recorded(step, entry, profiles, rekeyed) for step, entry in enumerate(ordered, 1) if step >= from_step]
    return Recording(
        run=str(bundle.run["id"]),
        index=index(steps),
        profiles=profiles,
        rekeyed=rekeyed,
        over_http2=_over_http2(entry.exchange.request for entry in ordered),
    )


def _recorded(step: int, entry: Entry, profiles: Profiles, rekeyed: bool) -> Recorded:
    request = entry.exchange.request
    told = None if entry.call is None else str(entry.call["key"])
    key = told if told and not rekeyed else keyed(request, profiles).key
    return Recorded(step=step, key=key, raw=raw_digest(request), exchange=entry.exchange, recorded_key=told)


def _over_http2(requests: Iterable[Request]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for request in requests:
        authority, _, _ = target(request.url)
        found[authority] = found.get(authority, False) or request.http_version.startswith("HTTP/2")
    return found
