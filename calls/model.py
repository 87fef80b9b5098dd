"""The types of the core: exchanges (what crossed the wire) and calls (what it meant).

Everything here is immutable and has no behaviour beyond small look-ups. What each exchange is made of are structs: making a frozen
dataclass takes four to ten times as long. Header names and values are text
in the isomorphic decoding of WHATWG Infra (one code point for each byte), so that no byte is lost or invented.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

import msgspec

type Json = bool | int | float | Decimal | str | Sequence[Json] | Mapping[str, Json] | None

type Headers = tuple[tuple[str, str], ...]
"""Ordered (name, value) pairs, names in the case they came in."""

type Outcome = Literal["completed", "client_closed", "server_closed", "timed_out", "refused"]
"""How an exchange ended: completely; the client closed; the upstream closed early or was never reached; a time limit
expired; Playhead declined it."""

type CallKind = Literal["model", "tool", "retrieval", "other"]

type AnswerState = Literal["error", "partial", "unkept"]
"""What an answer says of its call beside its status: it failed, or a part of it did. Or, `unkept`: bytes of the exchange were not
recorded (`body_limit`), and what was recorded does not show how the answer ended."""

type ChunkKind = Literal["data", "text", "binary", "close"]
"""A piece of an HTTP body is `data`; a WebSocket's messages are `text`, `binary` or `close`."""

LATE_CLOSE_AFTER = 4_000_000_000
"""Nanoseconds after the last byte. A client that closes later was still waiting for data: httpx gives up after 5 s."""

FORMAT = 1
"""The version of the trace format (docs/trace-format.md). A reader refuses unknown versions."""


class UnknownFormat(ValueError):
    """A record was written in a version of the trace format that this Playhead does not read."""


class Chunk(msgspec.Struct, frozen=True):
    """One piece of a body as it arrived."""

    at: int
    """Nanoseconds since the exchange began."""

    offset: int
    """Where the piece begins in the stored body, in bytes."""

    size: int
    kind: ChunkKind = "data"


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one message, after redaction, still content-encoded as they came."""

    data: bytes = b""
    chunks: tuple[Chunk, ...] = ()
    size: int = 0
    """Bytes that passed on the wire, including those that were not stored."""

    truncated: bool = False
    """True when bytes that passed are missing in `data`. Such a body is never served as complete."""

    reencoded: bool = False
    """True when a compressed body was decoded, redacted and compressed again: its bytes differ from the sender's."""


EMPTY_BODY = Body()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request, after redaction."""

    method: str
    url: str
    """As the client sent it: scheme, authority, path and query, before any upstream override."""

    http_version: str = "HTTP/1.1"
    headers: Headers = ()
    body: Body = EMPTY_BODY
    trailers: Headers = ()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP response, after redaction. 1xx responses are not stored."""

    status: int
    reason: str = ""
    http_version: str = "HTTP/1.1"
    headers: Headers = ()
    body: Body = EMPTY_BODY
    trailers: Headers = ()


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request and its response as they crossed the wire, after redaction: the evidence."""

    id: str
    """A UUIDv7 created by the proxy worker."""

    run: str
    request: Request
    response: Response | None
    """None when no response head arrived."""

    outcome: Outcome
    started_at: int
    """Nanoseconds since the Unix epoch, by the worker's clock."""

    first_byte_at: int | None
    """Nanoseconds since the exchange began, when the response head arrived. Monotonic, like all times but `started_at`."""

    ended_at: int | None
    """Nanoseconds since the exchange began; None when the worker died before the end."""

    redactions: int = 0
    run_evidence: tuple[tuple[str, str], ...] = ()
    """Every run identifier that the exchange carried, as (source, value), strongest first."""

    step: int | None = None
    """The client's `X-Playhead-Step` header, if it sent one."""

    actor: str | None = None
    error: str | None = None
    """Why the exchange did not complete, as a readable message."""

    format: int = FORMAT

    @property
    def is_truncated(self) -> bool:
        """Whether bytes of either body are missing."""
        return self.request.body.truncated or (self.response is not None and self.response.body.truncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the provider reported them; None for those it did not report."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that a model requested."""

    id: str | None
    name: str
    arguments: Json
    """The parsed value if the arguments are valid JSON, else their text."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One logical model or tool call, derived from one exchange."""

    exchanges: tuple[str, ...]
    kind: CallKind
    provider: str
    dialect: str
    operation: str
    """OpenTelemetry's `gen_ai.operation.name` if it defines one, else the dialect's own name."""

    key: str
    """`sha256:…`: the key of the request (`calls.keys.key`)."""

    profile: str
    """The name of the profile that the key was made with."""

    warnings: tuple[str, ...] = ()
    """Notes for the user on the key: fields that no rule classifies, bodies that are keyed by their raw bytes."""

    model_requested: str | None = None
    model_returned: str | None = None
    system_fingerprint: str | None = None
    params: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """Sampling parameters and other scalars of the request."""

    request: Json = None
    answer: Json = None
    """The answer in the shape of the API's non-streamed response, even if it was streamed."""

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[Json, ...] = ()
    finish_reason: str | None = None
    usage: Usage = Usage()
    streamed: bool = False
    complete: bool = False
    """False when the answer ended before the dialect's own end marker."""

    polls: str | None = None
    """The id of the work whose status the request polls: a background response, the run of a thread."""

    pending: str | None = None
    """The id of the work that continues after this answer. Polls of it belong to this call (`calls.retry_grouping`)."""

    answer_state: AnswerState | None = None


def has_answer_ended(call: Call) -> bool:
    """Return whether the answer reached its own end: the end marker, or an error in the stream, which nothing follows."""
    broken = call.streamed and isinstance(call.answer, Mapping) and call.answer.get("error") is not None
    return call.complete or broken


FAILED_FINISHES: Final = ("failed", "error", "ERROR")
"""Finish reasons by which a model says that it failed: of OpenAI's Responses, of OpenRouter and Vercel's gateway, of Cohere."""


def is_answer_broken(
    *,
    kind: str,
    streamed: bool,
    status: int | None,
    outcome: str,
    complete: bool,
    finish_reason: str | None,
    answer_state: str | None,
) -> bool:
    """Return whether an answer says that it failed, or did not reach its own end although its client waited for it.

    The connection broke; or a model's stream ended in an error, or without its end mark, under a status that says success: providers
    that are overloaded do that. A WebSocket (101) may be closed at any time. Where bytes were not recorded, nobody knows how a stream
    ended that HTTP ended in good order.
    """
    if answer_state == "error":
        return True
    if kind == "model" and finish_reason in FAILED_FINISHES:
        return True
    if complete or outcome == "client_closed":
        return False
    if outcome != "completed":
        return True
    return kind == "model" and streamed and status is not None and 200 <= status < 300 and answer_state != "unkept"


def client_outcome(exchange: Exchange, *, answer_ended: bool) -> Outcome:
    """Return how the exchange ended for the client.

    A client that closes right after the answer's own end received all of it: many SDKs stop reading there (OpenAI's at
    `[DONE]`), milliseconds before or after HTTP's end. A client that waited for HTTP's end and gave up (Anthropic's SDK)
    has failed.
    """
    body = exchange.response.body if exchange.response else EMPTY_BODY
    last = body.chunks[-1].at if body.chunks else 0
    at_once = (exchange.ended_at or last) - last < LATE_CLOSE_AFTER
    return "completed" if exchange.outcome == "client_closed" and answer_ended and at_once else exchange.outcome


def header(headers: Headers, name: str) -> str | None:
    """Return the first value of a header by its case-insensitive name."""
    lowered, size = name.lower(), len(name)
    # A loop that compares lengths first: this runs several times for each exchange and rarely finds the header.
    for key, value in headers:
        if len(key) == size and key.lower() == lowered:
            return value
    return None
