"""Dialects: the JSON shapes in which models and tools are asked and answer.

A dialect is a module that has the members of `Dialect`. To add one:

1. write the module (its stream as an `Accumulator`, see `parts.assembly`);
2. add its line to `table`, before `generic`;
3. classify its request fields in `calls/profiles/NAME.toml`;
4. put a captured stream and the expected answer into `tests/calls/captures/NAME/`: the conformance suite reads it from
   there, divided into pieces in many ways.

Dialects do not import one another, except a carrier, which reads what it carries (`aws.bedrock_invoke`). They ignore what
they do not know: the bytes are kept and can be read again by a later version.

table        the dialects, in the order in which they are asked
generic      any other HTTP API
openai       OpenAI, and services that copy its API
anthropic    Anthropic
google       Google
aws          AWS
protocols    MCP, A2A, JSON-RPC, GraphQL
services     other services
parts        what several dialects use
"""

from dataclasses import dataclass, field
from typing import Protocol

from calls.model import Headers, Json, Kind, ToolCall, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A dialect's word that a request is its own."""

    dialect: str
    operation: str
    kind: Kind | None
    """None where the shape does not tell, and the host must."""
    polls: str | None = None
    """The id of the work that the request asks after, where it only looks whether it is done."""
    path: str | None = None
    """The path as it counts in a key, where parts of the one that was asked say how and not what: a verb for streams, an account."""
    model: str | None = None
    """The model, where the path names it."""
    provider: str | None = None
    """Who answers, where the host does not tell but only one service speaks so."""
    streams: bool | None = None
    """Whether the path asks for a stream, where it is the path that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSummary:
    """What a request says."""

    model: str | None = None
    tool_results: tuple[Json, ...] = ()
    """What tools answered since the model spoke last."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What it asks a tool to do, where it is a tool that is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSummary:
    """What an answer says."""

    model: str | None = None
    fingerprint: str | None = None
    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    pending: str | None = None
    """The id of the work that goes on after this answer, where it is not done."""
    going_on: bool = False
    """Whether the work that was asked after goes on, where the answer does not name it."""
    results: tuple[Json, ...] = ()
    """What a tool or a search found, one by one."""


class Assembly(Protocol):
    """One answer while its bytes come in. Total: no bytes make it raise."""

    def feed(self, data: bytes) -> None:
        """Take more bytes of the decoded body."""

    def finish(self) -> None:
        """No more bytes will come."""

    @property
    def answer(self) -> Json:
        """The answer so far, in the shape of the API's own non-streamed response."""

    @property
    def complete(self) -> bool | None:
        """Whether the answer's own end mark has come; None where it has none and only HTTP can tell."""

    @property
    def streamed(self) -> bool:
        """Whether the body is a stream of messages."""


class Dialect(Protocol):
    """One wire shape. A module of this folder is one."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 # a module's constant

    def claims(self, method: str, host: str, path: str, headers: Headers) -> Claim | None:
        """This dialect's claim on a request with such a head, if it has one."""

    def asked(self, body: Json) -> RequestSummary:
        """What a request says."""

    def assemble(self, content_type: str) -> Assembly:
        """A new assembly for a response body of this media type."""

    def told(self, answer: Json) -> AnswerSummary:
        """What an answer says."""
