"""What an entry of the feed says. Times are nanoseconds since the Unix epoch, durations are nanoseconds."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from store.database.blobs import pack, unpack

IDLE: Final = 30 * 60 * 1_000_000_000
"""Nanoseconds without activity after which a run counts as ended; a later request opens it again."""


class RunBegan(msgspec.Struct, frozen=True, array_like=True, tag="began"):
    """A run was created."""

    run: str
    at: int


class RunEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A run ended. Not `is_reported`: it was idle for 30 minutes."""

    run: str
    at: int
    is_reported: bool


class RunChanged(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """Something of a run changed that no other entry tells, such as its labels, or its keys under new rules."""

    run: str
    at: int


class RunDeleted(msgspec.Struct, frozen=True, array_like=True, tag="deleted"):
    """A run was deleted with everything that was recorded in it, or all of it was moved to other runs."""

    run: str
    at: int
    is_expired: bool = False
    """By retention, which removes its texts itself, together with others."""


class CallStored(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """An exchange and its call were stored. `at` is when it began; a retry or a poll is an entry of its own."""

    run: str
    at: int
    id: str
    kind: str
    provider: str
    dialect: str
    operation: str
    host: str
    model: str | None
    """The requested model, else the returned one."""

    model_returned: str | None
    fingerprint: str | None
    tools: tuple[str, ...]
    status: int | None
    outcome: str
    is_complete: bool
    is_error: bool
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    cost_usd: str | None
    """A decimal number."""

    actor: str | None
    first_byte: int | None
    duration: int | None
    previous_run: str | None = None
    """The run that it was moved from."""


class GapStored(msgspec.Struct, frozen=True, array_like=True, tag="gap"):
    """A gap was stored."""

    run: str
    at: int
    reason: str
    exchange: str | None
    count: int


class ReplayStored(msgspec.Struct, frozen=True, array_like=True, tag="replay"):
    """A new report of a replay was stored; the newest one of a replay is valid. The counts are those of `replay.report`."""

    replay: str
    at: int
    run: str | None
    verdict: str | None
    served: int
    missed: int
    unused: int
    live: int
    edited: int
    drifted: int


class ModelChanged(msgspec.Struct, frozen=True, array_like=True, tag="model"):
    """A model answered under a name for the first time, where another had answered before."""

    run: str
    at: int
    call: str
    provider: str
    model: str
    """The requested name."""

    returned: str | None
    fingerprint: str | None
    was_returned: str | None
    was_fingerprint: str | None


type FeedEntry = RunBegan | RunEnded | RunChanged | RunDeleted | CallStored | GapStored | ReplayStored | ModelChanged

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[FeedEntry, ...])


def encode_entries(entries: Sequence[FeedEntry]) -> bytes:
    """Encode entries for one row of the feed."""
    return pack(_encoder.encode(entries))


@lru_cache(maxsize=64)
def decode_entries(data: bytes) -> tuple[FeedEntry, ...]:
    """The inverse of `encode_entries`. The consumers of the feed and the streams of events read the same rows."""
    return _decoder.decode(unpack(data))
