"""Find the recorded call that is most similar to a request that was not recorded.

Comparing a request with each of a hundred thousand others would take minutes. So a few candidates are selected by cheap
criteria, and only those are compared in depth: calls to the same destination that share rare pieces of text with the
request, and calls that have not been replayed yet.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from urllib.parse import urlsplit

from calls.keys.divergence import differences, distance
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.keys.request_document import readable_document
from calls.model import Json, Request, header
from replay.misses.miss import NearestCall
from replay.script import RecordedExchange

type Document = Callable[[Request], Json]
"""Returns the part of a request that is compared: the content of its key."""

type Place = tuple[str, ...]

CALLS_LISTED = 3
"""Maximum number of similar calls that are listed."""

DIFFERENCES_LISTED = 20
"""Maximum number of differences that are listed."""

_MAX_DIFFERENCES = 1000
"""Maximum number of differences that are counted."""

_MAX_HOLDERS = 64
"""A piece of text that occurs in more recorded requests than this is ignored as too common."""

_MAX_BY_TEXT = 8
"""Calls that are compared because they share rare text with the request."""

_MAX_UNPLAYED = 4
"""Calls that are compared because they were not replayed yet."""

_MAX_SEARCHED = 256
"""Calls of all destinations among which these are searched."""

_SHORTEST_PIECE = 3
_LONG_PIECE = 64
_END_LENGTH = 32


@dataclass(slots=True)
class NearestCallFinder:
    """An index to find the nearest recorded call. Building it takes about 20 µs for each exchange."""

    entries: Sequence[RecordedExchange]
    document: Document
    _by_scope: dict[Place, list[int]] = field(init=False, default_factory=dict)
    _by_text: dict[int, list[int]] = field(init=False, default_factory=dict)
    _truncated: list[int] = field(init=False, default_factory=list)
    """The exchanges whose requests were not recorded, or not sent, to their end."""

    def __post_init__(self) -> None:
        for number, entry in enumerate(self.entries):
            request = entry.exchange.request
            if request.body.truncated or unsent_bytes(request):
                self._truncated.append(number)
            for place in destination_scopes(request):
                self._by_scope.setdefault(place, []).append(number)
            for piece in text_hashes(request):
                holders = self._by_text.setdefault(piece, [])
                if len(holders) <= _MAX_HOLDERS:
                    holders.append(number)

    def nearest(self, request: Request, unplayed: Iterable[int]) -> list[RecordedExchange]:
        """Find the most similar calls, the nearest first; none if nothing was recorded.

        `unplayed`: places of calls not replayed yet.
        """
        scope = next((place for place in destination_scopes(request) if place in self._by_scope), None)
        if scope is None:
            return []
        closest = self._closest(self.document(request), self._candidates(request, scope, unplayed))
        return [self.entries[number] for number in closest]

    def truncated_match(self, request: Request) -> RecordedExchange | None:
        """Find a recorded call with a truncated request that equals the start of this one."""
        candidates = ((self.entries[number], self.entries[number].exchange.request) for number in self._truncated)
        return next((entry for entry, then in candidates if _may_be_same(request, then)), None)

    def compare(self, recorded: RecordedExchange, request: Request) -> NearestCall:
        """Compare a recorded call with a request."""
        both = self.document(recorded.exchange.request), self.document(request)
        found = list(islice(differences(*both), _MAX_DIFFERENCES))
        listed_differences = tuple(found[:DIFFERENCES_LISTED])
        return NearestCall(
            call=recorded.id,
            step=recorded.step,
            differences=listed_differences,
            more=len(found) - len(listed_differences),
        )

    def _candidates(self, request: Request, scope: Place, unplayed: Iterable[int]) -> list[int]:
        """The calls to compare. Unplayed ones come first: they win among equally near calls."""
        by_order = islice(self._in_scope(scope, islice(unplayed, _MAX_SEARCHED)), _MAX_UNPLAYED)
        by_text = islice(self._in_scope(scope, self._with_shared_text(request)), _MAX_BY_TEXT)
        return list(dict.fromkeys([*by_order, *by_text, self._by_scope[scope][-1]]))

    def _with_shared_text(self, request: Request) -> Iterator[int]:
        """Recorded requests that share text with this one; those that share rarer text come first."""
        votes: defaultdict[int, float] = defaultdict(float)
        for piece in text_hashes(request):
            holders = self._by_text.get(piece, ())
            for number in holders if len(holders) <= _MAX_HOLDERS else ():
                votes[number] += 1 / len(holders)
        return iter(nlargest(_MAX_SEARCHED, votes, key=lambda number: (votes[number], -number)))

    def _in_scope(self, scope: Place, numbers: Iterable[int]) -> Iterator[int]:
        return (number for number in numbers if scope in destination_scopes(self.entries[number].exchange.request))

    def _closest(self, wanted_document: Json, candidates: Iterable[int]) -> list[int]:
        """Return the closest candidates. Of equally near ones, those that come first win."""
        best: list[tuple[float, int]] = []
        for number in candidates:
            limit = best[-1][0] if len(best) == CALLS_LISTED else float("inf")
            apart = distance(self.document(self.entries[number].exchange.request), wanted_document, limit)
            if apart < limit:
                best = sorted([*best, (apart, number)], key=lambda candidate: candidate[0])[:CALLS_LISTED]
        return [number for _, number in best]


def unsent_bytes(request: Request) -> int:
    """The number of announced body bytes that were never sent, because the request was answered before."""
    length = header(request.headers, "content-length") or ""
    return max(int(length) - request.body.size, 0) if length.isdecimal() else 0


def _may_be_same(request: Request, truncated: Request) -> bool:
    is_same_url = (request.method, request.url) == (truncated.method, truncated.url)
    return is_same_url and request.body.data.startswith(truncated.body.data)


def destination_scopes(request: Request) -> tuple[Place, ...]:
    """The destination of a request at five precisions, from method, host and path to anything."""
    url = urlsplit(request.url)
    method, host, path = request.method, url.netloc, url.path
    return (method, host, path), ("", host, path), (method, host), (host,), ()


def text_hashes(request: Request) -> set[int]:
    """Hashes of the pieces of a request's text.

    Quotes split JSON into names, strings and what is between them. Both ends of a long string count as well, so that a
    change in its middle does not hide the similarity.
    """
    cut = request.body.data.split(b'"')
    cut += request.url.encode("utf-8", "replace").split(b"/")
    found = {hash(piece) for piece in cut if len(piece) >= _SHORTEST_PIECE}
    for piece in cut:
        if len(piece) >= _LONG_PIECE:
            found.add(hash(piece[:_END_LENGTH]))
            found.add(hash(piece[-_END_LENGTH:]))
    return found


def comparison_document(request: Request, profiles: Profiles) -> Json:
    """The content of a request's key, with its query by name and the messages of a body of protobuf."""
    return readable_document(make_key(request, profiles))
