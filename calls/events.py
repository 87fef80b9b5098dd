"""The events that a wire engine reports: one for each thing that happened to an exchange, with its time.

The spool holds exactly these events, after redaction, in the order in which they happened; an exchange is their fold
(`fold`). Times are nanoseconds on a monotonic clock since the exchange began; only `RequestStarted` and `Gap`
carry wall time. Encoded as MessagePack arrays, tagged by name (msgspec): one for each event, or an array of them for what
came together.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from calls.model import ChunkKind, Headers, Outcome

type Side = Literal["request", "response"]


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Something that happened to the exchange `id`."""

    id: str


class RequestStarted(Event, frozen=True, tag="req"):
    """The request's head has arrived. `run` is what the worker knows (credentials, our header, or the connection's owner)."""

    run: str
    started_at: int
    method: str
    url: str
    http_version: str
    headers: Headers
    run_evidence: tuple[tuple[str, str], ...] = ()
    step: int | None = None
    actor: str | None = None
    redactions: int = 0


class ResponseStarted(Event, frozen=True, tag="res"):
    """The response's head has arrived."""

    at: int
    status: int
    reason: str
    http_version: str
    headers: Headers
    redactions: int = 0


class Data(Event, frozen=True, tag="data"):
    """A piece of a body, or a WebSocket message, as it arrived. `size` is what crossed the wire where that is not len(data)."""

    at: int
    side: Side
    data: bytes
    kind: ChunkKind = "data"
    size: int | None = None
    redactions: int = 0
    reencoded: bool = False


class MessageEnded(Event, frozen=True, tag="end"):
    """One message is whole. With it the recorder says how many bytes passed (`size`), kept or not."""

    at: int
    side: Side
    size: int
    truncated: bool = False
    trailers: Headers = ()


class ExchangeClosed(Event, frozen=True, tag="closed"):
    """The exchange is over; nothing follows. The only event that every exchange of a living worker has last."""

    at: int
    outcome: Outcome
    error: str | None = None


class Gap(msgspec.Struct, frozen=True, array_like=True, tag="gap"):
    """Something passed (or may have passed) that could not be recorded."""

    run: str
    happened_at: int
    reason: str
    exchange: str | None = None
    count: int = 1
    """How often: gaps of one run and reason that had to wait become one."""


class ReplayNoted(msgspec.Struct, frozen=True, array_like=True, tag="replay"):
    """A replay's report so far, as JSON; the last one of a replay counts."""

    replay: str
    report: bytes


type Record = RequestStarted | ResponseStarted | Data | MessageEnded | ExchangeClosed | Gap | ReplayNoted

# Not wrapped: a worker does this for every event of every stream.
encode: Final[Callable[[Record | Sequence[Record]], bytes]] = msgspec.msgpack.Encoder().encode
"""One record, or several that are kept together or not at all, as MessagePack."""

_decoder = msgspec.msgpack.Decoder(Record)
_decoder_of_several = msgspec.msgpack.Decoder(list[Record])

SEVERAL_BELOW: Final = 0xA0
"""What a record begins with, behind its length, is its tag; several begin with the first one's length, which is below."""


def decode(data: bytes | memoryview) -> list[Record]:
    """The records that `encode` made bytes of. Raises `msgspec.ValidationError` on anything else."""
    if len(data) > 1 and data[1] < SEVERAL_BELOW:
        several: list[Record] = _decoder_of_several.decode(data)
        return several
    record: Record = _decoder.decode(data)
    return [record]


class DataHead(Event, frozen=True, tag="data"):
    """A `Data` whose bytes were not opened."""

    at: int
    side: Side
    data: msgspec.Raw
    kind: ChunkKind = "data"
    size: int | None = None
    redactions: int = 0
    reencoded: bool = False


type RecordHead = RequestStarted | ResponseStarted | DataHead | MessageEnded | ExchangeClosed

_head_decoder = msgspec.msgpack.Decoder(RecordHead)
_head_decoder_of_several = msgspec.msgpack.Decoder(list[RecordHead])


def decode_heads(data: bytes | memoryview) -> list[RecordHead]:
    """The same events without a copy of their bodies. Raises `msgspec.ValidationError`, also for a gap or a report."""
    if len(data) > 1 and data[1] < SEVERAL_BELOW:
        several: list[RecordHead] = _head_decoder_of_several.decode(data)
        return several
    record: RecordHead = _head_decoder.decode(data)
    return [record]
