"""The types of the core: exchanges (what crossed the wire) and calls (what it meant).

Everything here is immutable and has no behaviour beyond small look-ups. Header names and values are text
in the isomorphic decoding of WHATWG Infra (one code point for each byte), so that no byte is lost or invented.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

type Json = bool | int | float | Decimal | str | Sequence[Json] | Mapping[str, Json] | None

type Headers = tuple[tuple[str, str], ...]
"""Ordered (name, value) pairs, names in the case they came in."""

type Outcome = Literal["completed", "client_closed", "server_closed", "timed_out", "refused"]
"""How an exchange ended: whole; the client left; the upstream broke off or was never reached; a limit of time ran out;
we or the engine declined it."""

type Kind = Literal["model", "tool", "retrieval", "other"]

type ChunkKind = Literal["data", "text", "binary", "close"]
"""A piece of an HTTP body is `data`; a WebSocket's messages are `text`, `binary` or `close`."""

LINGERED = 4_000_000_000
"""Nanoseconds. Who has waited for so long after the last byte has waited for more: httpx gives up after 5 s of silence."""

FORMAT = 1
"""The version of the trace format (docs/trace-format.md). A reader refuses one it does not know."""


class UnknownFormat(ValueError):
    """A record was written in a version of the trace format that this Playhead does not read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a body as it arrived."""

    at: int
    """Nanoseconds since the exchange began."""

    offset: int
    """Where the piece begins in the stored body, in bytes."""

    size: int
    kind: ChunkKind = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The bytes of one message, after redaction, still content-encoded as they came."""

    data: bytes = b""
    chunks: tuple[Chunk, ...] = ()
    size: int = 0
    """How many bytes passed on the wire, also those that were not kept."""

    truncated: bool = False
    """True when bytes passed that `data` lacks. Such a body is never served as a whole one."""

    reencoded: bool = False
    """True when a compressed body had to be opened to be redacted, so that its bytes are ours and not the sender's."""


EMPTY = Body()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request, after redaction."""

    method: str
    url: str
    """As the client asked: scheme, authority, path and query (an upstream override does not show)."""

    http_version: str = "HTTP/1.1"
    headers: Headers = ()
    body: Body = EMPTY
    trailers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One HTTP response, after redaction. 1xx responses are not kept."""

    status: int
    reason: str = ""
    http_version: str = "HTTP/1.1"
    headers: Headers = ()
    body: Body = EMPTY
    trailers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP request and its response as they crossed the wire, after redaction: the evidence."""

    id: str
    """A uuidv7 made at the worker."""

    run: str
    request: Request
    response: Response | None
    """None when no response head came."""

    outcome: Outcome
    started_at: int
    """Nanoseconds since the Unix epoch, by the worker's clock."""

    first_byte_at: int | None
    """Nanoseconds since the exchange began, when the response head arrived. Monotonic, like all times but `started_at`."""

    ended_at: int | None
    """Nanoseconds since the exchange began; None when the worker died before the end."""

    redactions: int = 0
    run_evidence: tuple[tuple[str, str], ...] = ()
    """Every identifier of a run that the exchange carried, as (source, value), strongest first."""

    step: int | None = None
    """The client's own `X-Playhead-Step`, where it sent one."""

    actor: str | None = None
    error: str | None = None
    """Why it did not complete, in words for a person."""

    format: int = FORMAT

    @property
    def truncated(self) -> bool:
        """Whether bytes of either body are lacking."""
        return self.request.body.truncated or (self.response is not None and self.response.body.truncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the provider reported them; None where it did not."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool that a model asked for."""

    id: str | None
    name: str
    arguments: Json
    """Parsed where they are valid JSON, else the text as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One logical model or tool call, derived from one exchange."""

    exchanges: tuple[str, ...]
    kind: Kind
    provider: str
    dialect: str
    operation: str
    """A `gen_ai.operation.name` of OpenTelemetry where there is one, else the dialect's own word."""

    key: str
    """`sha256:…`: which request this is (`key`)."""

    profile: str
    """Name of the profile that made the key."""

    warnings: tuple[str, ...] = ()
    """What the key's maker wants a person to know: fields that no rule classifies, bodies that fell to a raw-bytes key."""

    model_requested: str | None = None
    model_returned: str | None = None
    system_fingerprint: str | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    """Sampling and other scalar parameters of the request."""

    request: Json = None
    answer: Json = None
    """In the shape of the API's own non-streamed response, whether or not it was streamed."""

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[Json, ...] = ()
    finish_reason: str | None = None
    usage: Usage = Usage()
    streamed: bool = False
    complete: bool = False
    """False when the answer ended before the dialect's own end marker."""

    polls: str | None = None
    """The id of the work that the request only asks after: a background response, a run of a thread."""

    pending: str | None = None
    """The id of the work that goes on after this answer; whoever polls it continues this call (`folding`)."""


def concluded(call: Call) -> bool:
    """Whether the answer came to its own end: its end mark, or an error in a stream's midst, behind which nothing comes."""
    broken = call.streamed and isinstance(call.answer, Mapping) and call.answer.get("error") is not None
    return call.complete or broken


def ended(exchange: Exchange, *, concluded: bool) -> Outcome:
    """How an exchange ended for its client, which had all of an answer that is `concluded`: many leave a stream at its own
    end (OpenAI's SDK at `[DONE]`), and whether HTTP's came first is a matter of milliseconds. Who waited for it (Anthropic's
    SDK) and gave up has failed."""
    body = exchange.response.body if exchange.response else EMPTY
    last = body.chunks[-1].at if body.chunks else 0
    at_once = (exchange.ended_at or last) - last < LINGERED
    return "completed" if exchange.outcome == "client_closed" and concluded and at_once else exchange.outcome


def header(headers: Headers, name: str) -> str | None:
    """The first value of a header, by its case-insensitive name."""
    wanted, size = name.lower(), len(name)
    # A loop, and lengths first: this is asked several times for each exchange, and mostly in vain.
    for key, value in headers:
        if len(key) == size and key.lower() == wanted:
            return value
    return None
