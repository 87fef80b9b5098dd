"""GraphQL over HTTP or a WebSocket at any host, including Weaviate's searches: operation, variables, data or errors.

Over a WebSocket there are two protocols, each named in the opening: `graphql-transport-ws` of the package graphql-ws, and
the older `graphql-ws` of subscriptions-transport-ws, which AppSync uses too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import as_array, as_object
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.framing import sse, websocket
from calls.model import AnswerState, Headers, Json
from calls.websocket_messages import is_websocket_request

_PATH: Final = re.compile(r"(.*/)?graphql/?")
_WEAVIATE: Final = "/v1/graphql"
_PROTOCOL: Final = "sec-websocket-protocol"
_SOCKET: Final = re.compile(r"(.*,)?\s*graphql-(transport-)?ws\s*(,.*)?")


def claim(method: str, _host: str, path: str, headers: Headers) -> Claim | None:
    """Claim `…/graphql` at any host, and a WebSocket of GraphQL at any path. The host determines the kind; Weaviate is
    recognised by its path."""
    if any(name == _PROTOCOL and _SOCKET.fullmatch(value) for name, value in headers):
        return Claim(operation="subscriptions", kind=None) if is_websocket_request(method, headers) else None
    if method != "POST" or _PATH.fullmatch(path) is None:
        return None
    return Claim(operation="graphql", kind="retrieval" if path == _WEAVIATE else None)


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the results of a search of Weaviate, by class."""
    classes = as_object(as_object(as_object(answer).get("data")).get("Get"))
    found = [as_object(one) for name in classes for one in as_array(classes[name])]
    return AnswerSummary(results=tuple(map(_search_result, found)), state=_answer_state(answer))


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a result, or for the results of subscriptions or of a deferred query."""
    if content_type == websocket.MEDIA:
        return AccumulatorAssembly(content_type, GraphqlSocket(), (websocket,))
    return AccumulatorAssembly(content_type, GraphqlStream(), (sse,))


class GraphqlStream:
    """The results of one subscription, by the GraphQL over SSE protocol."""

    def __init__(self) -> None:
        self._results: list[Json] = []
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:
        """Add one event: `next` has a result, `complete` has none."""
        result = parse_payload(data)
        if result:
            self._results.append(dict(result))
        self._has_ended = self._has_ended or event == "complete"

    @property
    def answer(self) -> Json:
        """The results so far."""
        return list(self._results)

    @property
    def is_complete(self) -> bool | None:
        """Whether `complete` arrived; None without it, because not all servers send it."""
        return self._has_ended or None


class GraphqlSocket:
    """The results of all operations over one WebSocket, in the order in which they came."""

    is_complete: Final = None

    def __init__(self) -> None:
        self._results: list[Json] = []

    def add_message(self, _event: str, data: str) -> None:
        """Add one message: `next`, `data` in the older protocol, has a result, and `error` the errors of an operation."""
        message = parse_payload(data)
        payload = message.get("payload")
        match message.get("type"):
            case "next" | "data" if payload:
                self._results.append(payload)
            case "error" | "connection_error":
                self._results.append({"errors": payload if isinstance(payload, list) else [payload]})

    @property
    def answer(self) -> Json:
        """The results so far."""
        return list(self._results)


def _answer_state(answer: Json) -> AnswerState | None:
    """Whether the operation failed, or only some fields of it: then others have a value.

    A mutation that failed has null in its field, and `data` is often there.
    """
    results = [as_object(one) for one in (answer if isinstance(answer, Sequence) else [answer])]
    if not any(as_array(result.get("errors")) for result in results):
        return None
    has_value = any(value is not None for result in results for value in as_object(result.get("data")).values())
    return "partial" if has_value else "error"


def _search_result(one: Mapping[str, Json]) -> Json:
    extra = as_object(one.get("_additional"))
    score = next((extra[name] for name in ("score", "certainty", "distance") if extra.get(name) is not None), None)
    return {"id": extra.get("id"), "score": score, "content": {k: v for k, v in one.items() if k != "_additional"}}


DIALECT: Final = Dialect(
    name="graphql",
    claim=claim,
    headers=("upgrade", _PROTOCOL),
    precedence=6,  # claims a path that any host may have
    assemble=assemble,
    summarize_answer=summarize_answer,
    why_no_answer="the form of its data is that of the query",
)
