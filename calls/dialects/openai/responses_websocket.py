"""OpenAI's Responses over a WebSocket: each `response.create` is answered by the events of its stream.

Several conversations can share one socket: events of each have its `stream_id`. This is a carrier: it sorts the
events, and `openai_responses` reads them.
"""

import re
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.openai import responses as openai_responses
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.token_counts import sum_usages
from calls.framing import websocket
from calls.model import Headers, Json
from calls.websocket_messages import is_websocket_request

_PATH: Final = re.compile(r"(?:.*/)?responses")


def claim(method: str, _host: str, path: str, headers: Headers) -> Claim | None:
    """Claim a WebSocket at `…/responses` of any host."""
    if not _PATH.fullmatch(path) or not is_websocket_request(method, headers):
        return None
    return Claim(operation="chat", kind="model")


def summarize_request(body: Json) -> RequestSummary:
    """Find the last model, and all results of tools."""
    each = [openai_responses.summarize_request(message) for message in as_array(body)]
    models = [one.model for one in each if one.model]
    results = tuple(result for one in each for result in one.tool_results)
    return RequestSummary(model=models[-1] if models else None, tool_results=results)


def summarize_answer(answer: Json) -> AnswerSummary:
    """Join the texts and tool calls of all responses. There is no polling over a socket."""
    each = [openai_responses.summarize_answer(response) for response in as_array(as_object(answer).get("responses"))]
    if not each:
        return AnswerSummary()
    return AnswerSummary(
        model=each[-1].model,
        text="\n".join(one.text for one in each if one.text) or None,
        tool_calls=tuple(call for one in each for call in one.tool_calls),
        finish_reason=each[-1].finish_reason,
        usage=sum_usages(one.usage for one in each),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for the messages of a socket, or for a refused one."""
    return AccumulatorAssembly(content_type, ResponsesWebsocketStream(), (websocket,))


class ResponsesWebsocketStream:
    """The events of one socket."""

    def __init__(self) -> None:
        self._responses: list[openai_responses.ResponsesStream] = []
        self._current: dict[str, tuple[str, openai_responses.ResponsesStream]] = {}
        """The current response of each conversation, with its id."""

        self._errors: list[Json] = []

    def add_message(self, event: str, data: str) -> None:
        """Add one event."""
        fields = parse_payload(data)
        lane = as_text(fields.get("stream_id"))
        name = as_text_or_none(as_object(fields.get("response")).get("id"))
        current = self._current.get(lane)
        # GitHub Copilot changes the id of a response with every event.
        over = current is None or fields.get("type") == "response.created" or current[1].is_complete
        if name and over and (current is None or current[0] != name):
            current = self._current[lane] = name, openai_responses.ResponsesStream()
            self._responses.append(current[1])
        if fields.get("type") == "error" and (current is None or current[1].is_complete):
            # The request did not start a response.
            self._errors.append(fields.get("error"))
        elif current is not None and event != "close":
            current[1].add_message("", data)

    @property
    def answer(self) -> Json:
        """The responses so far, each as the API returns it."""
        answer: dict[str, Json] = {}
        if self._responses:
            answer["responses"] = [response.answer for response in self._responses]
        return answer | ({"errors": list(self._errors)} if self._errors else {}) or None

    @property
    def is_complete(self) -> bool | None:
        """Whether every response has ended; None for a socket without responses, which ends when it is closed."""
        return all(response.is_complete for response in self._responses) if self._responses else None


DIALECT: Final = Dialect(
    name="openai_responses_socket",
    claim=claim,
    headers=("upgrade",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    error_body=openai_error,
    why_no_answer="it is a conversation over a WebSocket, which only a recording can answer",
)
