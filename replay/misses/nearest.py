"""Find the recorded call that is most similar to a request that was not recorded.

Comparing a request with each of a hundred thousand others would take minutes. So a few candidates are picked by what is
cheap to know, and only those are compared in depth: calls to the same place that share rare pieces of text with the
request, and those whose turn it was.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from urllib.parse import urlsplit

from calls.keys.divergence import differences, distance
from calls.keys.key import keyed
from calls.keys.profile import Profiles
from calls.keys.request_document import load_bearing
from calls.model import Json, Request, header
from replay.misses.miss import Nearest
from replay.script import RecordedExchange

type Document = Callable[[Request], Json]
"""What of a request is compared: that which goes into its key."""

type Place = tuple[str, ...]

SHOWN = 20
"""How many differences are listed. Nobody reads a longer list."""

_COUNTED = 1000
_COMMON = 64
"""A piece of text that more recorded requests have than this tells nothing."""

_BY_TEXT = 8
_BY_TURN = 4
_SHORTEST = 3
_LONG = 64
_END = 32
_LOOKED_AT = 256


@dataclass(slots=True)
class Finder:
    """Looks for the nearest among the recorded exchanges. It costs some 20 µs for each of them to build one."""

    entries: Sequence[RecordedExchange]
    document: Document
    _pools: dict[Place, list[int]] = field(init=False, default_factory=dict)
    _holders: dict[int, list[int]] = field(init=False, default_factory=dict)
    _cut: list[int] = field(init=False, default_factory=list)
    """Those whose requests were not kept, or not sent, to their end."""

    def __post_init__(self) -> None:
        for number, entry in enumerate(self.entries):
            request = entry.exchange.request
            if request.body.truncated or unsent(request):
                self._cut.append(number)
            for place in places(request):
                self._pools.setdefault(place, []).append(number)
            for piece in pieces(request):
                holders = self._holders.setdefault(piece, [])
                if len(holders) <= _COMMON:
                    holders.append(number)

    def nearest(self, request: Request, turn: Iterable[int]) -> RecordedExchange | None:
        """The most similar call, None where nothing was recorded. `turn`: whose turn it is, as places among the entries."""
        pool = next((place for place in places(request) if place in self._pools), None)
        if pool is None:
            return None
        return self.entries[self._closest(self.document(request), self._candidates(request, pool, turn))]

    def cut(self, request: Request) -> RecordedExchange | None:
        """A recorded call that may be this one, as far as its request was kept."""
        kept = ((self.entries[number], self.entries[number].exchange.request) for number in self._cut)
        return next((entry for entry, then in kept if _begins(request, then)), None)

    def compared(self, recorded: RecordedExchange, request: Request) -> Nearest:
        """A recorded call beside a request."""
        both = self.document(recorded.exchange.request), self.document(request)
        found = list(islice(differences(*both), _COUNTED))
        shown = tuple(found[:SHOWN])
        return Nearest(call=recorded.id, step=recorded.step, differences=shown, more=len(found) - len(shown))

    def _candidates(self, request: Request, pool: Place, turn: Iterable[int]) -> list[int]:
        """Those whose turn it is come first: of two that are equally near, it is the one."""
        by_turn = islice(self._in(pool, islice(turn, _LOOKED_AT)), _BY_TURN)
        by_text = islice(self._in(pool, self._sharing(request)), _BY_TEXT)
        return list(dict.fromkeys([*by_turn, *by_text, self._pools[pool][-1]]))

    def _sharing(self, request: Request) -> Iterator[int]:
        """Recorded requests that share text with this one, the rarer the text the earlier."""
        votes: defaultdict[int, float] = defaultdict(float)
        for piece in pieces(request):
            holders = self._holders.get(piece, ())
            for number in holders if len(holders) <= _COMMON else ():
                votes[number] += 1 / len(holders)
        return iter(nlargest(_LOOKED_AT, votes, key=lambda number: (votes[number], -number)))

    def _in(self, pool: Place, numbers: Iterable[int]) -> Iterator[int]:
        return (number for number in numbers if pool in places(self.entries[number].exchange.request))

    def _closest(self, wanted: Json, candidates: Iterable[int]) -> int:
        best, least = -1, float("inf")
        for number in candidates:
            apart = distance(self.document(self.entries[number].exchange.request), wanted, least)
            if apart < least:
                best, least = number, apart
        return best


def unsent(request: Request) -> int:
    """Bytes of a request that were announced and never came: it was answered before."""
    length = header(request.headers, "content-length") or ""
    return max(int(length) - request.body.size, 0) if length.isdecimal() else 0


def _begins(request: Request, with_: Request) -> bool:
    same = (request.method, request.url) == (with_.method, with_.url)
    return same and request.body.data.startswith(with_.body.data)


def places(request: Request) -> tuple[Place, ...]:
    """Where a request goes, from the exact place to anywhere."""
    url = urlsplit(request.url)
    method, host, path = request.method, url.netloc, url.path
    return (method, host, path), ("", host, path), (method, host), (host,), ()


def pieces(request: Request) -> set[int]:
    """Hashes of pieces of a request's text. Quotes cut JSON into its names, its strings and what stands between them; of a
    long string both ends count too, so that a change within it does not hide it."""
    cut = request.body.data.split(b'"')
    cut += request.url.encode("utf-8", "replace").split(b"/")
    found = {hash(piece) for piece in cut if len(piece) >= _SHORTEST}
    for piece in cut:
        if len(piece) >= _LONG:
            found.add(hash(piece[:_END]))
            found.add(hash(piece[-_END:]))
    return found


def document(request: Request, profiles: Profiles) -> Json:
    """What goes into a request's key, with its query by name."""
    return load_bearing(keyed(request, profiles))
