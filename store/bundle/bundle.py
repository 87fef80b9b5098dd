"""Read and write bundles: a run as one file of JSON Lines that anybody can review and verify (docs/trace-format.md).

The first line says what it is and which run; then comes one line for each exchange, in the order of their steps, and
one for each gap; the last line counts them and digests all bytes before. Every line ends in a digest of itself, so that
damage is not only noticed but found. The same run always gives the same bytes. Everything here is bytes and values;
only `load` touches a file.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import msgspec

from calls.codec.json import parse
from calls.events import Gap
from calls.model import FORMAT, Call, Exchange, UnknownFormat
from store.bundle.trace import (
    BodyJson,
    ExchangeJson,
    GapJson,
    Span,
    Unfit,
    body_to_json,
    digest,
    from_json,
    gap_from_json,
    gap_to_json,
    to_json,
    told_size,
)

CALL_MEMBERS = (
    *("kind", "provider", "dialect", "operation", "key", "nth", "profile", "warnings"),
    *("model_requested", "model_returned", "text", "tool_calls", "finish_reason", "usage", "streamed", "complete"),
)
"""What a bundle tells of a call. The rest (request, answer, parameters) is derived from the exchange again."""


COUNTED = frozenset(
    (
        *("active_at", "calls", "exchanges", "gaps", "complete", "pinned", "models"),
        *("tokens", "cost_usd", "known_cost_usd", "unpriced"),
    )
)
"""What of a run is counted from its lines, or is so only at this moment and in this place. A bundle does not hold it: it
would change where nothing was recorded anew."""


def told(call: Call, nth: int) -> dict[str, Any]:
    """What a bundle tells of a call that was derived, the `nth` of its key in the run."""
    known = {"nth": nth, "usage": asdict(call.usage), "tool_calls": [asdict(tool) for tool in call.tool_calls]}
    return {name: known.get(name, getattr(call, name, None)) for name in CALL_MEMBERS}


class BadBundle(ValueError):
    """The file is not a whole, undamaged bundle. `line` is the first that is wrong."""

    def __init__(self, line: int, why: str) -> None:
        self.line = line
        self.wrong = f"line {line} of the bundle is not as it was written: {why}"
        super().__init__(f"{self.wrong}; export the run again")


class NoBundle(BadBundle):
    """The file is something else altogether."""

    def __init__(self) -> None:
        self.line, self.wrong = 1, "this is no Playhead bundle"
        ValueError.__init__(self, f"{self.wrong}; make one with: playhead export RUN -o FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One exchange and what was derived from it."""

    exchange: Exchange
    call: Mapping[str, Any] | None = None
    """`CALL_MEMBERS` of the call, in the contract's form. The key holds under the bundle's `profiles` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleHead:
    """What a bundle's first line says."""

    run: Mapping[str, Any]
    profiles: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A run with all its evidence."""

    run: Mapping[str, Any]
    """The run in the contract's form; `id` is always there."""

    profiles: str
    """Digest of the profiles that made the keys."""

    entries: Sequence[Entry] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchanges in the order of their steps."""
        return [entry.exchange for entry in self.entries]


def write(bundle: Bundle) -> Iterator[bytes]:
    """The lines of a bundle, one by one."""
    writer = Writer()
    yield writer.head(bundle.run, bundle.profiles)
    for entry in bundle.entries:
        yield writer.exchange(entry)
    for gap in bundle.gaps:
        yield writer.gap(gap)
    yield writer.end()


def load(path: Path) -> Bundle:
    """The bundle in a file. Raises OSError, and what `read` raises."""
    with path.open("rb") as file:
        return read(file)


def read(lines: Iterable[bytes]) -> Bundle:
    """The bundle that `write` was given, after every check. Raises BadBundle or UnknownFormat."""
    return gathered(parts(lines))


def gathered(found: Iterable["BundleHead | Entry | Gap"]) -> Bundle:
    """The bundle that these parts are."""
    head: BundleHead | None = None
    entries: list[Entry] = []
    gaps: list[Gap] = []
    for part in found:
        match part:
            case BundleHead():
                head = part
            case Entry():
                entries.append(part)
            case _:
                gaps.append(part)
    assert head is not None, "a bundle without a first line is refused"
    return Bundle(run=head.run, profiles=head.profiles, entries=tuple(entries), gaps=tuple(gaps))


def parts(
    lines: Iterable[bytes], room: int | None = None, requests: "Requests | None" = None
) -> Iterator["BundleHead | Entry | Gap"]:
    """The same one by one, for whoever cannot hold a whole run; that it is whole is known only at the end.

    Raises `NoRoom` before all bodies together are more than `room` bytes.
    """
    reader = _Reader(_room=room, _requests={} if requests is None else requests)
    number = 0
    for number, line in enumerate(lines, 1):
        part = reader.feed(number, line)
        if part is not None:
            yield part
    reader.finish(number)


@dataclass(slots=True)
class Writer:
    """Makes the lines of one bundle in turn, for whoever cannot hold a whole run in memory."""

    _line: int = 0
    _exchanges: int = 0
    _gaps: int = 0
    _sha: Any = field(default_factory=hashlib.sha256)
    _recent: dict[str, "deque[tuple[int, bytes]]"] = field(default_factory=dict)

    def head(self, run: Mapping[str, Any], profiles: str) -> bytes:
        """The first line."""
        kept = {name: value for name, value in run.items() if name not in COUNTED}
        return self._sealed({"playhead": "bundle", "format": FORMAT, "profiles": profiles, "run": kept})

    def exchange(self, entry: Entry) -> bytes:
        """The next exchange. They come in the order of their steps."""
        self._exchanges += 1
        raw = to_json(entry.exchange, self._request_body(entry.exchange))
        call = None if entry.call is None else {name: entry.call[name] for name in CALL_MEMBERS if name in entry.call}
        return self._sealed({"n": self._line + 1, "exchange": raw, "call": call})

    def gap(self, gap: Gap) -> bytes:
        """Something that could not be recorded. Gaps come after the exchanges."""
        self._gaps += 1
        return self._sealed({"n": self._line + 1, "gap": gap_to_json(gap)})

    def end(self) -> bytes:
        """The last line."""
        whole = f"sha256:{self._sha.hexdigest()}"
        return self._sealed({"end": True, "exchanges": self._exchanges, "gaps": self._gaps, "digest": whole})

    def _sealed(self, members: Mapping[str, Any]) -> bytes:
        line = seal(_visible(_encoder.encode(members)))
        self._line += 1
        self._sha.update(line)
        return line

    def _request_body(self, exchange: Exchange) -> BodyJson | None:
        request, body = exchange.request, exchange.request.body
        place = f"{request.method} {request.url.partition('?')[0]}"
        recent = self._recent.setdefault(place, deque(maxlen=_CANDIDATES))
        raw = body_to_json(body, request.headers, *_shared(body.data, recent))
        if raw is not None and raw.text is not None and len(body.data) >= _WORTH_A_REFERENCE:
            recent.append((self._line + 1, body.data))
        return raw


_encoder = msgspec.json.Encoder(decimal_format="number")

_CANDIDATES = 4
"""How many earlier requests to the same place a new one is compared with: agents that run side by side take turns."""

_WORTH_A_REFERENCE = 256
_SEAL = b',"check":"'
_SEAL_SIZE = len(_SEAL) + len('sha256:"}\n') + 64


def seal(line: bytes) -> bytes:
    """One line: the JSON object, with a digest of all of it that stands before the digest."""
    with memoryview(line) as view, view[:-1] as content:
        return b"".join((content, _seal_of(content)))


def _seal_of(content: memoryview) -> bytes:
    return _SEAL + digest(content).encode() + b'"}\n'


# What a reviewer must see and an editor must not act on: line separators, bidirectional overrides, C1 controls, and tags,
# by which a model can be told what no person sees. Outside of strings JSON has none of them, so escaping them changes no value.
_UNSEEN = re.compile(
    rb"\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf|\xc2[\x80-\x9f]|\x7f|\xd8\x9c|\xf3\xa0[\x80-\x87][\x80-\xbf]"
)


def _visible(line: bytes) -> bytes:
    if line.isascii() and b"\x7f" not in line:
        return line  # a large body is base64 mostly, and to search it takes seconds
    return _UNSEEN.sub(lambda found: json.dumps(found[0].decode())[1:-1].encode(), line)


def _shared(data: bytes, recent: Iterable[tuple[int, bytes]]) -> tuple[Span | None, Span | None]:
    """The ends that `data` has in common with one of the earlier bodies, where they are worth a reference."""
    best: tuple[int, int, int] = (0, 0, 0)
    for line, other in recent:
        prefix = _prefix(data, other)
        suffix = _suffix(data[prefix:], other)
        best = max(best, (line, prefix, suffix), key=lambda found: found[1] + found[2])
    line, prefix, suffix = best
    return (line, prefix) if prefix else None, (line, suffix) if suffix else None


def _prefix(data: bytes, other: bytes) -> int:
    """How much of the beginning agrees, up to a brace: so no character is cut in two, and what is left reads well."""
    size = _longest(min(len(data), len(other)), lambda size: data[:size] == other[:size])
    cut = max(data.rfind(b"{", 0, size), data.rfind(b"}", 0, size) + 1)
    return cut if cut >= _WORTH_A_REFERENCE // 2 else 0


def _suffix(data: bytes, other: bytes) -> int:
    """How much of the end agrees, from the next member or the end of a list on."""
    limit = min(len(data), len(other))
    size = _longest(limit, lambda size: data[len(data) - size :] == other[len(other) - size :])
    cut = _CUT.search(data, len(data) - size)
    return len(data) - cut.start() if cut and len(data) - cut.start() >= _WORTH_A_REFERENCE // 2 else 0


_CUT = re.compile(rb',"|]')


def _longest(limit: int, agrees: Any) -> int:
    """The greatest size up to `limit` that agrees, by bisection."""
    low = 0
    while low < limit:
        middle = (low + limit + 1) // 2
        low, limit = (middle, limit) if agrees(middle) else (low, middle - 1)
    return low


class _FormatJson(msgspec.Struct):
    """What the first line says in every version."""

    format: int
    playhead: Literal["bundle"]


class _HeadJson(msgspec.Struct):
    profiles: str
    run: dict[str, Any]


class _LineJson(msgspec.Struct):
    """Any line but the first."""

    n: int = 0
    exchange: ExchangeJson | None = None
    call: msgspec.Raw = msgspec.Raw(b"null")
    gap: GapJson | None = None
    end: bool = False
    exchanges: int = 0
    gaps: int = 0
    digest: str = ""


_format_decoder = msgspec.json.Decoder(_FormatJson)
_line_decoder = msgspec.json.Decoder(_LineJson)
_head_decoder = msgspec.json.Decoder(_HeadJson, float_hook=Decimal)


class Requests(Protocol):
    """Keeps the bodies of the requests that a later line may repeat, by the numbers of their lines."""

    def __setitem__(self, line: int, body: bytes, /) -> None: ...

    def __getitem__(self, line: int, /) -> bytes: ...


class FiledRequests:
    """Keeps them in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: dict[int, tuple[int, int]] = {}
        self._end = 0

    def __setitem__(self, line: int, body: bytes) -> None:
        self._file.seek(self._end)
        self._file.write(body)
        self._places[line] = (self._end, len(body))
        self._end += len(body)

    def __getitem__(self, line: int) -> bytes:
        start, size = self._places[line]
        self._file.seek(start)
        return self._file.read(size)


class NoRoom(Exception):
    """The bodies of a bundle are larger, all together, than its reader takes."""


@dataclass(slots=True)
class _Reader:
    _room: int | None
    _requests: Requests
    _exchanges: int = 0
    _gaps: int = 0
    _sha: Any = field(default_factory=hashlib.sha256)
    _ended: bool = False

    def feed(self, number: int, line: bytes) -> BundleHead | Entry | Gap | None:
        if self._ended:
            raise BadBundle(number, "something follows the line that ends the bundle")
        if number == 1:
            _recognized(line)
        content = _unsealed(number, line)
        try:
            part = _head(content) if number == 1 else self._go_on(number, _line_decoder.decode(content))
        except (BadBundle, UnknownFormat):
            raise
        except (ValueError, RecursionError) as error:
            raise BadBundle(number, str(error)) from None
        self._sha.update(line)
        return part

    def finish(self, lines: int) -> None:
        if not self._ended:
            raise BadBundle(lines + 1, "the file breaks off here")

    def _go_on(self, number: int, line: _LineJson) -> Entry | Gap | None:
        if line.end:
            self._end(number, line)
            return None
        if line.n != number:
            raise BadBundle(number, f"it was written as line {line.n}: lines were removed, added or moved")
        if line.exchange is not None:
            return self._entry(number, line.exchange, line.call)
        if line.gap is not None:
            self._gaps += 1
            return gap_from_json(line.gap)
        raise BadBundle(number, "it holds neither an exchange nor a gap")

    def _entry(self, number: int, raw: ExchangeJson, call: msgspec.Raw) -> Entry:
        known_format(raw.format)
        self._take_room(raw)
        exchange = from_json(raw, self._earlier)
        self._exchanges += 1
        self._requests[number] = exchange.request.body.data
        return Entry(exchange=exchange, call=_members(call))

    def _take_room(self, raw: ExchangeJson) -> None:
        """Told before they are put together: a line may repeat an earlier body twice, and the next line that one."""
        if self._room is not None:
            bodies = (raw.request.body, raw.response.body if raw.response else None)
            self._room -= sum(told_size(body) for body in bodies if body)
            if self._room < 0:
                raise NoRoom

    def _earlier(self, line: int) -> bytes:
        try:
            return self._requests[line]
        except KeyError:
            raise Unfit(f"it refers to line {line}, which is no earlier exchange") from None

    def _end(self, number: int, line: _LineJson) -> None:
        if line.digest != f"sha256:{self._sha.hexdigest()}":
            raise BadBundle(number, "its digest of all lines before does not hold: one was exchanged for another")
        if (line.exchanges, line.gaps) != (self._exchanges, self._gaps):
            raise BadBundle(number, f"it counts {line.exchanges} exchanges and {line.gaps} gaps, which is not so")
        self._ended = True


def _head(content: bytes) -> BundleHead:
    known_format(_format_decoder.decode(content).format)
    head = _head_decoder.decode(content)
    if not isinstance(head.run.get("id"), str):
        raise Unfit("it does not say which run it holds")
    return BundleHead(run=head.run, profiles=head.profiles)


def _members(raw: msgspec.Raw) -> Mapping[str, Any] | None:
    value = parse(bytes(raw))
    if value is None or isinstance(value, Mapping):
        return value
    raise Unfit("its call is no object")


def known_format(found: object) -> None:
    """Refuse a version of the trace format that we do not read."""
    if found != FORMAT:
        raise UnknownFormat(
            f"the recording is written in version {found} of the trace format, this Playhead reads version {FORMAT}; "
            "use a Playhead that reads it, or export the run again with this one"
        )


CONFLICT = (b"<<<<<<< ", b"||||||| ", b"=======", b">>>>>>> ")
"""How the lines begin that Git puts where it cannot merge."""

CONFLICTED = "a conflict marker of Git's: a merge of the file is not finished (take one side of it)"


def _recognized(line: bytes) -> None:
    """Refuse what never was a bundle, and one of a later version, which may seal its lines in a way of its own."""
    if line.startswith(b"\xef\xbb\xbf"):
        raise BadBundle(1, "it begins with a byte order mark, so an editor has rewritten the file (save it without)")
    try:
        head = _format_decoder.decode(line)
    except (ValueError, RecursionError):
        if not line.startswith((b'{"playhead":"bundle"', *CONFLICT)):
            raise NoBundle from None
    else:
        if head.format > FORMAT:
            known_format(head.format)


def _unsealed(number: int, line: bytes) -> bytes:
    """The line's JSON, sure that it is as it was sealed."""
    if line.startswith(CONFLICT):
        raise BadBundle(number, f"it is {CONFLICTED}")
    if line.endswith(b"\r\n"):
        raise BadBundle(number, "its end is CR LF, so an editor or Git has rewritten the file (mark it `-text`)")
    if len(line) < _SEAL_SIZE or not line.startswith(b"{") or not line.endswith(b'"}\n'):
        raise BadBundle(number, "the line is not whole")
    with memoryview(line) as view, view[:-_SEAL_SIZE] as content:
        is_sealed = _seal_of(content) == view[-_SEAL_SIZE:]
    if not is_sealed:
        raise BadBundle(number, "its bytes do not match its own digest")
    return line
