"""The events that a wire engine reports: one for each thing that happened to an exchange, with its time.

The spool holds exactly these events, after redaction, in the order in which they happened; `calls.exchange_builder` builds
an exchange from them. Times are nanoseconds on a monotonic clock since the exchange began; only `RequestStarted`, `Gap` and
`EffectBatch` carry wall time. An event is encoded as a MessagePack array with its tag (msgspec), and events that arrived together as an
array of these.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from calls.model import ChunkKind, Headers, Outcome

type Side = Literal["request", "response"]


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An event of the exchange `id`."""

    id: str


class RequestStarted(Event, frozen=True, tag="req"):
    """The request's head has arrived. `run` is what the worker knows: from credentials, a header, or the connection."""

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
    """A piece of a body, or a WebSocket message, as it arrived. `size` is its size on the wire if that is not `len(data)`."""

    at: int
    side: Side
    data: bytes
    kind: ChunkKind = "data"
    size: int | None = None
    redactions: int = 0
    reencoded: bool = False


class MessageEnded(Event, frozen=True, tag="end"):
    """A request or response is complete. `size` is how many bytes passed, stored or not."""

    at: int
    side: Side
    size: int
    truncated: bool = False
    trailers: Headers = ()


class ExchangeClosed(Event, frozen=True, tag="closed"):
    """The exchange is over. Every exchange ends with this event unless its worker dies."""

    at: int
    outcome: Outcome
    error: str | None = None


class Gap(msgspec.Struct, frozen=True, array_like=True, tag="gap"):
    """Traffic that passed, or may have passed, and could not be recorded."""

    run: str
    happened_at: int
    reason: str
    exchange: str | None = None
    count: int = 1
    """How many gaps this stands for: gaps of one run and reason that had to wait are merged."""


class ReplayReported(msgspec.Struct, frozen=True, array_like=True, tag="replay"):
    """The report of a replay so far, as JSON. The last one of a replay is valid."""

    replay: str
    report: bytes


class EffectBatch(msgspec.Struct, frozen=True, array_like=True, tag="effects"):
    """Effects that one process of a run observed one after another (`calls.effects`)."""

    run: str
    id: str
    observed_at: int
    """When the batch arrived; its effects happened before."""

    process: str
    """The process, by the order in which they began: "0" is the first, "0.1" the second that it started."""

    number: int
    """The place of the batch among those of its process, from 0."""

    count: int
    """How many effects it has."""

    items: bytes
    """The effects as canonical JSON."""


type Record = (
    RequestStarted | ResponseStarted | Data | MessageEnded | ExchangeClosed | Gap | ReplayReported | EffectBatch
)

# Not wrapped in a function: a worker calls this for every event of every stream.
encode_records: Final[Callable[[Record | Sequence[Record]], bytes]] = msgspec.msgpack.Encoder().encode
"""Encode one record, or several that are stored all or none, as MessagePack."""

_decoder = msgspec.msgpack.Decoder(Record)
_decoder_of_several = msgspec.msgpack.Decoder(list[Record])

SEVERAL_BELOW: Final = 0xA0
"""The bound of the second byte: of one record it is the start of its tag, of several the length of the first, below this."""


def decode_records(data: bytes | memoryview) -> list[Record]:
    """Decode what `encode_records` encoded. Raises `msgspec.ValidationError` on anything else."""
    if len(data) > 1 and data[1] < SEVERAL_BELOW:
        several: list[Record] = _decoder_of_several.decode(data)
        return several
    record: Record = _decoder.decode(data)
    return [record]


class DataHead(Event, frozen=True, tag="data"):
    """A `Data` event without a copy of its bytes."""

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


def decode_record_heads(data: bytes | memoryview) -> list[RecordHead]:
    """Decode events without copying their bodies. Raises `msgspec.ValidationError`, also for a gap or a report."""
    if len(data) > 1 and data[1] < SEVERAL_BELOW:
        several: list[RecordHead] = _head_decoder_of_several.decode(data)
        return several
    record: RecordHead = _head_decoder.decode(data)
    return [record]
