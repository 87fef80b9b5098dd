"""What a dialect declares, and what it finds in a request and in an answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from calls.dialects.parts.answer_composition import AnswerComposer
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria, streamed_if_requested
from calls.dialects.parts.error_bodies import plain_error
from calls.dialects.parts.stream_writing import StreamWriter
from calls.dialects.parts.unclaimed_kinds import model_or_other
from calls.model import AnswerState, CallKind, Headers, Json, ToolCall, Usage

_SSE_IF_REQUESTED: Final = streamed_if_requested("sse")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A dialect's statement that a request is its own."""

    operation: str
    kind: CallKind | None
    """None where only the host determines it."""
    dialect: str | None = None
    """The dialect that reads this request, where it is not the one that claims it."""
    polls: str | None = None
    """The id of the work that the request asks about, where it only asks whether that work is done."""
    path: str | None = None
    """The path as it counts in a key, where the requested path also says how to answer (streamed) or for which account."""
    model: str | None = None
    """The model, where the path names it."""
    provider: str | None = None
    """The provider, where the host does not determine it but only one service speaks this dialect."""
    streams: bool | None = None
    """Whether the answer is streamed, where the path determines it."""


class RequestSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for."""

    model: str | None = None
    tool_results: tuple[Json, ...] = ()
    """The results of tools since the model's last message."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls that a request to a tool makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSummary:
    """What an answer contains."""

    model: str | None = None
    fingerprint: str | None = None
    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    pending: str | None = None
    """The id of the work that continues after this answer."""
    is_unfinished: bool = False
    """Whether the polled work continues, where the answer does not name it."""
    results: tuple[Json, ...] = ()
    """The results of a tool or a search, one by one."""
    state: AnswerState | None = None
    """Whether the answer says, under a status of success, that the call failed, or a part of it."""


class Assembly(Protocol):
    """Assembles one answer while its bytes arrive. It never raises, whatever the bytes are."""

    def feed(self, data: bytes) -> None:
        """Take more bytes of the decoded body."""

    def finish(self) -> None:
        """Note that the body has ended."""

    @property
    def answer(self) -> Json:
        """The answer so far, in the shape of the API's own response without streaming."""

    @property
    def is_complete(self) -> bool | None:
        """Whether the answer's own end marker has arrived; None if its format has no marker, so that only HTTP tells the end."""

    @property
    def is_streamed(self) -> bool:
        """Whether the body is a stream of messages."""


class AnswerPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Where a whole answer has its text and its tool calls: names and indices with `/` between them, and `*` for every index."""

    texts: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The objects that have a tool call's `name` and its arguments."""
    arguments: tuple[str, ...] = ()
    """The names of the arguments in these objects."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service that is recognised by its hosts."""

    provider: str | None
    """OpenTelemetry's `gen_ai.provider.name`, or a name of that kind where it has none; None: the host is the provider."""
    hosts: tuple[str, ...] = ()
    """Hosts of this service and nothing else. Keys name the provider in their place."""
    host_pattern: str | None = None
    """A regular expression for further hosts. Keys name the host, as each may be a deployment of its own."""
    only_models: bool = True
    """Whether the hosts of the pattern serve nothing but models; clouds, warehouses and hubs do not."""
    unclaimed_kind: Callable[[str, str], CallKind] = model_or_other
    """The kind of a request that no dialect claims, by its method and path."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One API's shape: how its requests are recognised, how requests and answers are read, and how replay writes answers.

    A field with a default is needed only where the API differs from it.
    """

    name: str
    """Stored with each call. Its profile is `calls/profiles/NAME.toml`; its captures are in `tests/calls/captures/NAME/`."""

    claim: Callable[[str, str, str, Headers], Claim | None]
    """Claim a request by its method, its host in lower case, its path from the first slash to the query, and its headers; None: it is
    not in this dialect."""
    headers: tuple[str, ...] = ()
    """The request headers that `claim` needs, in lower case: it is given no others."""
    claim_json_rpc: Callable[[Headers, tuple[str, ...]], Claim | None] | None = None
    """Claim a JSON-RPC request by all its headers and the methods that its body names. Only for dialects of JSON-RPC."""
    claim_body: Callable[[bytes], Claim | None] | None = None
    """Claim a POST by its body, if no dialect claims it by its head. Only for protocols that any path may have."""
    body_start: bytes = b""
    """What every body begins with that `claim_body` claims: it is asked for no others."""
    body_mark: bytes = b""
    """What every such body has, too."""
    precedence: int = 0
    """Dialects of a lower precedence are asked first, and those of one precedence never claim the same request.

    0 is for an API that is recognised by a path or host of its own; `table` lists the others."""
    services: tuple[Service, ...] = ()
    """The services that speak first of all this dialect."""

    summarize_request: Callable[[Json], RequestSummary] = lambda _body: RequestSummary()
    """Find the model, tool results and tool calls in the body of a request."""
    assemble: Callable[[str], Assembly]
    """Make an assembly for a response body of this media type."""
    summarize_answer: Callable[[Json], AnswerSummary]
    """Find the text, tool calls, usage and the like in an answer."""

    answer_form: Callable[[FormCriteria], AnswerForm] = _SSE_IF_REQUESTED
    """Determine whether a request asks for a streamed answer, and in which form."""
    stream_writers: Mapping[AnswerForm, StreamWriter] = msgspec.field(default_factory=dict)
    """How to stream a whole answer, for each form in which replay can."""
    compose_answer: AnswerComposer | None = None
    """How to make a whole answer of a text and tool calls, for a test without a recording."""
    compose_results: AnswerComposer | None = None
    """The same of results: vectors, ranks, categories, images, or what a tool returns."""
    why_no_answer: str | None = None
    """Why neither can be made, and such an answer is given as a body, where that is so. A sentence without its end."""
    respell_answer: Callable[[Json, Json, Json], Json | None] | None = None
    """Spell an answer to one request as another one with the same key requests it; None: they request the same spelling."""
    answer_paths: AnswerPaths | None = None
    """Where an override finds text and tool calls; None: these edits are refused."""
    error_body: Callable[[int, str], Json] = plain_error
    """Make the body of an error with this status and message."""
    error_headers: Callable[[int], Headers] = lambda _status: ()
    """Make the headers that an error with this status has beside those of HTTP."""
