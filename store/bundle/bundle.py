"""Read and write bundles: a run as one file of JSON Lines that anybody can review and verify (docs/trace-format.md).

The first line has the format and the run. One line follows for each exchange, in the order of their steps, one for each gap, and one
for each batch of effects. The last line has their counts and a digest of all bytes before it. Every line ends with a digest of itself, so that
damage is not only detected but located. The same run always gives the same bytes. Only `load_bundle` touches a file.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol

import msgspec

from calls.codec.json import parse_json
from calls.events import EffectBatch, Gap
from calls.model import FORMAT, Call, Exchange, UnknownFormat
from store.bundle.sealed_lines import CONFLICT, seal_fault, seal_line, show_invisible
from store.bundle.shared_ends import WORTH_A_REFERENCE, shared_ends
from store.bundle.trace import (
    BodyJson,
    EffectsJson,
    ExchangeJson,
    GapJson,
    InvalidTrace,
    body_to_json,
    effects_from_json,
    effects_to_json,
    exchange_from_json,
    exchange_to_json,
    gap_from_json,
    gap_to_json,
    stated_size,
)

CALL_MEMBERS = (
    *("kind", "provider", "dialect", "operation", "key", "nth", "profile", "warnings"),
    *("model_requested", "model_returned", "text", "tool_calls", "finish_reason", "usage", "streamed", "complete"),
)
"""The members of a call in a bundle. The rest (request, answer, parameters) is derived from the exchange again."""


NOT_EXPORTED = frozenset(
    (
        *("active_at", "calls", "exchanges", "gaps", "complete", "pinned", "models"),
        *("tokens", "cost_usd", "known_cost_usd", "unpriced", "head"),
    )
)
"""Members of a run that a bundle leaves out: they are counted from its lines, or depend on the time and the store, so that a
bundle would change although nothing new was recorded."""


def call_members(call: Call, nth: int) -> dict[str, Any]:
    """Return the members of a call in a bundle; `nth` is its place among the run's calls with the same key."""
    known = {"nth": nth, "usage": asdict(call.usage), "tool_calls": [asdict(tool) for tool in call.tool_calls]}
    return {name: known.get(name, getattr(call, name, None)) for name in CALL_MEMBERS}


class BadBundle(ValueError):
    """The file is a damaged or incomplete bundle. `line` is the first that is wrong."""

    def __init__(self, line: int, why: str) -> None:
        self.line, self.why = line, why
        self.problem = f"line {line} of the bundle is damaged: {why}"
        super().__init__(f"{self.problem}; export the run again")


class NotABundle(BadBundle):
    """The file is not a bundle."""

    def __init__(self) -> None:
        self.line = 1
        self.why = self.problem = "the file is not a Playhead bundle"
        ValueError.__init__(self, f"{self.problem}; make one with: playhead export RUN -o FILE")


class BundleTooLarge(BadBundle):
    """The bodies of the bundle together exceed the reader's limit."""

    def __init__(self, line: int, room: int) -> None:
        self.line = line
        self.why = f"the bodies up to line {line} of the bundle are together larger than {room:,} bytes"
        self.problem = f"{self.why}, the limit of what is read at once"
        ValueError.__init__(self, f"{self.problem}: short lines can repeat large ones, so check who made the file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One exchange and the call that was derived from it."""

    exchange: Exchange
    call: Mapping[str, Any] | None = None
    """`CALL_MEMBERS` of the call, as the API shows them. The key is valid under the bundle's `profiles` only."""


class BundleHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a bundle."""

    run: Mapping[str, Any]
    profiles: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A run with all its exchanges, gaps and effects."""

    run: Mapping[str, Any]
    """The run as the API shows it; `id` is always present."""

    profiles: str
    """The digest of the profiles under which the keys were computed."""

    entries: Sequence[Entry] = ()
    gaps: tuple[Gap, ...] = ()
    effects: tuple[EffectBatch, ...] = ()
    """By process, in the order in which they were observed."""

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchanges in the order of their steps."""
        return [entry.exchange for entry in self.entries]


def bundle_lines(bundle: Bundle) -> Iterator[bytes]:
    """Yield the lines of a bundle."""
    writer = BundleWriter()
    yield writer.head(bundle.run, bundle.profiles, has_effects=bool(bundle.effects))
    for entry in bundle.entries:
        yield writer.exchange(entry)
    for gap in bundle.gaps:
        yield writer.gap(gap)
    for batch in bundle.effects:
        yield writer.effects(batch)
    yield writer.end()


def load_bundle(path: Path) -> Bundle:
    """Read the bundle in a file. Raises OSError, BadBundle or UnknownFormat."""
    with path.open("rb") as file:
        return read_bundle(file)


LARGEST_IN_MEMORY: Final = 4 << 30
"""Bytes that the bodies of a bundle may have together where it is read into memory. They may exceed the file by far."""


def read_bundle(lines: Iterable[bytes]) -> Bundle:
    """Read and check the lines of a bundle. Raises BadBundle or UnknownFormat."""
    return collect_bundle(read_parts(lines, LARGEST_IN_MEMORY))


def collect_bundle(parts: Iterable["BundleHead | Entry | Gap | EffectBatch"]) -> Bundle:
    """Assemble a bundle from its parts."""
    head: BundleHead | None = None
    entries: list[Entry] = []
    gaps: list[Gap] = []
    effects: list[EffectBatch] = []
    for part in parts:
        match part:
            case BundleHead():
                head = part
            case Entry():
                entries.append(part)
            case EffectBatch():
                effects.append(part)
            case _:
                gaps.append(part)
    assert head is not None, "a bundle without a first line is refused"
    return Bundle(
        run=head.run, profiles=head.profiles, entries=tuple(entries), gaps=tuple(gaps), effects=tuple(effects)
    )


def read_parts(
    lines: Iterable[bytes], room: int | None = None, requests: "RequestBodies | None" = None
) -> Iterator["BundleHead | Entry | Gap | EffectBatch"]:
    """Read a bundle part by part, without holding the whole run. Whether it is complete is known only at the end.

    Raises BadBundle, UnknownFormat, and `BundleTooLarge` before all bodies together exceed `room` bytes.
    """
    reader = _Reader(_room=room, _requests={} if requests is None else requests)
    number = 0
    for number, line in enumerate(lines, 1):
        part = reader.feed(number, line)
        if part is not None:
            yield part
    reader.finish(number)


type ProofJson = Mapping[str, Any] | msgspec.Raw
"""The members of a proof, also as they are written."""


class BundleWriter(msgspec.Struct):
    """Writes a bundle line by line, without holding the whole run."""

    _line: int = 0
    _exchanges: int = 0
    _gaps: int = 0
    _effects: int = 0
    _sha: Any = msgspec.field(default_factory=hashlib.sha256)
    _recent: dict[str, "deque[tuple[int, bytes]]"] = msgspec.field(default_factory=dict)

    def head(self, run: Mapping[str, Any], profiles: str, *, has_effects: bool = False) -> bytes:
        """Return the first line. Only a bundle with effects has the version that earlier Playheads cannot read."""
        run_members = {name: value for name, value in run.items() if name not in NOT_EXPORTED}
        return self._seal_and_count(
            {
                "playhead": "bundle",
                "format": EFFECTS_FORMAT if has_effects else FORMAT,
                "profiles": profiles,
                "run": run_members,
            }
        )

    def exchange(self, entry: Entry, proof: ProofJson | None = None) -> bytes:
        """Return the line of the next exchange, in the order of steps."""
        self._exchanges += 1
        raw = exchange_to_json(entry.exchange, self._request_body(entry.exchange))
        call = None if entry.call is None else {name: entry.call[name] for name in CALL_MEMBERS if name in entry.call}
        return self._seal_and_count({"n": self._line + 1, "exchange": raw, "call": call} | _proof_member(proof))

    def gap(self, gap: Gap, proof: ProofJson | None = None) -> bytes:
        """Return the line of a gap. Gaps come after the exchanges."""
        self._gaps += 1
        return self._seal_and_count({"n": self._line + 1, "gap": gap_to_json(gap)} | _proof_member(proof))

    def effects(self, batch: EffectBatch, proof: ProofJson | None = None) -> bytes:
        """Return the line of a batch of effects. They come after the gaps."""
        self._effects += 1
        return self._seal_and_count({"n": self._line + 1, "effects": effects_to_json(batch)} | _proof_member(proof))

    def end(
        self,
        proof: Mapping[str, Any] | None = None,
        sign: Callable[[Mapping[str, Any]], str | None] | None = None,
        envelope: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the last line. `sign` returns a signed note about its members; `envelope` says what was captured of the run."""
        whole = f"sha256:{self._sha.hexdigest()}"
        members: dict[str, Any] = {"end": True, "exchanges": self._exchanges, "gaps": self._gaps, "digest": whole}
        if self._effects:
            members["effects"] = self._effects
        if envelope is not None:
            members["envelope"] = envelope
        members |= _proof_member(proof)
        if sign is not None and (note := sign(members)) is not None:
            members["signed"] = note
        return self._seal_and_count(members)

    def _seal_and_count(self, members: Mapping[str, Any]) -> bytes:
        line = seal_line(show_invisible(_encoder.encode(members)))
        self._line += 1
        self._sha.update(line)
        return line

    def _request_body(self, exchange: Exchange) -> BodyJson | None:
        request, body = exchange.request, exchange.request.body
        place = f"{request.method} {request.url.partition('?')[0]}"
        recent = self._recent.setdefault(place, deque(maxlen=_CANDIDATES))
        raw = body_to_json(body, request.headers, *shared_ends(body.data, recent))
        if raw is not None and raw.text is not None and len(body.data) >= WORTH_A_REFERENCE:
            recent.append((self._line + 1, body.data))
        return raw


def _proof_member(proof: ProofJson | None) -> dict[str, Any]:
    return {} if proof is None else {"proof": proof}


_encoder = msgspec.json.Encoder(decimal_format="number")

_CANDIDATES = 4
"""The number of earlier requests to the same URL that a new one is compared with: concurrent agents alternate."""


class _FormatJson(msgspec.Struct):
    """The members of the first line that every version has."""

    format: int
    playhead: Literal["bundle"]


class _HeadJson(msgspec.Struct):
    profiles: str
    run: dict[str, Any]


class _LineJson(msgspec.Struct):
    """Any line except the first."""

    n: int = 0
    exchange: ExchangeJson | None = None
    call: msgspec.Raw = msgspec.Raw(b"null")
    gap: GapJson | None = None
    effects: EffectsJson | int | None = None
    end: bool = False
    exchanges: int = 0
    gaps: int = 0
    digest: str = ""


_format_decoder = msgspec.json.Decoder(_FormatJson)
_line_decoder = msgspec.json.Decoder(_LineJson)
_head_decoder = msgspec.json.Decoder(_HeadJson, float_hook=Decimal)


class RequestBodies(Protocol):
    """Keeps the request bodies to which later lines may refer, by line number."""

    def __setitem__(self, line: int, body: bytes, /) -> None: ...

    def __getitem__(self, line: int, /) -> bytes: ...


class RequestFile:
    """Keeps request bodies in a file."""

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


class _Reader(msgspec.Struct):
    _room: int | None
    _requests: RequestBodies
    _taken: int = 0
    _exchanges: int = 0
    _gaps: int = 0
    _effects: int = 0
    _sha: Any = msgspec.field(default_factory=hashlib.sha256)
    _is_finished: bool = False

    def feed(self, number: int, line: bytes) -> BundleHead | Entry | Gap | EffectBatch | None:
        if self._is_finished:
            raise BadBundle(number, "it follows the last line of the bundle")
        if number == 1:
            _check_first_line(line)
        if (fault := seal_fault(line)) is not None:
            raise BadBundle(number, fault)
        try:
            part = _head(line) if number == 1 else self._read_line(number, _line_decoder.decode(line))
        except (BadBundle, UnknownFormat):
            raise
        except (ValueError, RecursionError) as error:
            raise BadBundle(number, str(error)) from None
        self._sha.update(line)
        return part

    def finish(self, lines: int) -> None:
        if not self._is_finished:
            raise BadBundle(lines + 1, "the file ends before it")

    def _read_line(self, number: int, line: _LineJson) -> Entry | Gap | EffectBatch | None:
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
        if isinstance(line.effects, EffectsJson):
            self._effects += 1
            self._take_bytes(number, len(bytes(line.effects.items)))
            return effects_from_json(line.effects)
        raise BadBundle(number, "it holds neither an exchange nor a gap nor effects")

    def _entry(self, number: int, raw: ExchangeJson, call: msgspec.Raw) -> Entry:
        require_known_format(raw.format)
        self._take_room(number, raw)
        exchange = exchange_from_json(raw, self._earlier)
        self._exchanges += 1
        self._requests[number] = exchange.request.body.data
        return Entry(exchange=exchange, call=_members(call))

    def _take_room(self, number: int, raw: ExchangeJson) -> None:
        """Check the size before the bodies are assembled: by repeated references it can double with each line."""
        bodies = (raw.request.body, raw.response.body if raw.response else None)
        self._take_bytes(number, sum(stated_size(body) for body in bodies if body))

    def _take_bytes(self, number: int, size: int) -> None:
        self._taken += size
        if self._room is not None and self._taken > self._room:
            raise BundleTooLarge(number, self._room)

    def _earlier(self, line: int) -> bytes:
        try:
            return self._requests[line]
        except KeyError:
            raise InvalidTrace(f"it refers to line {line}, which is not an earlier exchange") from None

    def _end(self, number: int, line: _LineJson) -> None:
        if line.digest != f"sha256:{self._sha.hexdigest()}":
            raise BadBundle(number, "its digest does not match the lines before: a line was replaced")
        if (line.exchanges, line.gaps) != (self._exchanges, self._gaps):
            found = f"{self._exchanges} and {self._gaps}"
            raise BadBundle(
                number,
                f"its last line counts {line.exchanges} exchanges and {line.gaps} gaps, and the lines before have {found}",
            )
        if (line.effects or 0) != self._effects:
            raise BadBundle(
                number,
                f"its last line counts {line.effects or 0} batches of effects, and the lines before have {self._effects}",
            )
        self._is_finished = True


def _head(content: bytes) -> BundleHead:
    require_known_bundle(_format_decoder.decode(content).format)
    head = _head_decoder.decode(content)
    if not isinstance(head.run.get("id"), str):
        raise InvalidTrace("it does not name its run")
    if not isinstance(head.run.get("labels"), dict | None):
        raise InvalidTrace("the labels of its run are not an object")
    return BundleHead(run=head.run, profiles=head.profiles)


def _members(raw: msgspec.Raw) -> Mapping[str, Any] | None:
    value = parse_json(bytes(raw))
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidTrace("its call is not an object")
    for name in ("key", "profile"):
        if not isinstance(value.get(name), str | None):
            raise InvalidTrace(f"the {name} of its call is not text")
    return value


def require_known_format(version: object) -> None:
    """Raise UnknownFormat for another version of the trace format."""
    if version != FORMAT:
        raise UnknownFormat(
            f"the recording is written in version {version} of the trace format, this Playhead reads version {FORMAT}; "
            "use a Playhead that reads it, or export the run again with this one"
        )


EFFECTS_FORMAT: Final = 2
"""The version of a bundle that has effects. The exchanges in it are as in version 1."""


def require_known_bundle(version: int) -> None:
    """Raise UnknownFormat for a version of bundles that this Playhead does not read."""
    if version not in (FORMAT, EFFECTS_FORMAT):
        raise UnknownFormat(
            f"the recording is written in version {version} of the trace format, this Playhead reads versions {FORMAT} and"
            f" {EFFECTS_FORMAT}; use a Playhead that reads it, or export the run again with this one"
        )


def _check_first_line(line: bytes) -> None:
    """Refuse a file that is not a bundle, and a bundle of a later version, whose lines may be sealed differently."""
    if line.startswith(b"\xef\xbb\xbf"):
        raise BadBundle(
            1, "it begins with a byte order mark, so an editor has rewritten the file (save it without one)"
        )
    try:
        head = _format_decoder.decode(line)
    except (ValueError, RecursionError):
        if not line.startswith((b'{"playhead":"bundle"', *CONFLICT)):
            raise NotABundle from None
    else:
        if head.format > EFFECTS_FORMAT:
            require_known_bundle(head.format)
