"""OpenAI's Responses over a WebSocket: each `response.create` is answered by the events of its stream.

Several conversations may share one socket: what belongs to one of them carries its `stream_id`. This is a carrier: it sorts the
events, and `openai_responses` reads them.
"""

import re
from typing import Final

from calls.codec.lenient_json import elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.openai import responses as openai_responses
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.dialects.parts.token_counts import added
from calls.framing import websocket
from calls.model import Headers, Json
from calls.websocket_messages import opens

NAME: Final = "openai_responses_socket"

_PATH: Final = re.compile(r"(?:.*/)?responses")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/responses`, where a WebSocket is asked for."""
    if not _PATH.fullmatch(path) or not opens(method, headers):
        return None
    return Claim(dialect=NAME, operation="chat", kind="model")


def asked(body: Json) -> RequestSummary:
    """The model that was asked last, and everything that tools answered."""
    each = [openai_responses.asked(message) for message in elements(body)]
    models = [one.model for one in each if one.model]
    results = tuple(result for one in each for result in one.tool_results)
    return RequestSummary(model=models[-1] if models else None, tool_results=results)


def told(answer: Json) -> AnswerSummary:
    """What all responses say, one after another. Nobody polls for what goes on in a socket."""
    each = [openai_responses.told(response) for response in elements(members(answer).get("responses"))]
    if not each:
        return AnswerSummary()
    return AnswerSummary(
        model=each[-1].model,
        text="\n".join(one.text for one in each if one.text) or None,
        tool_calls=tuple(call for one in each for call in one.tool_calls),
        finish_reason=each[-1].finish_reason,
        usage=added(one.usage for one in each),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for all that comes over a socket, or for the refusal of one."""
    return AccumulatorAssembly(content_type, ResponsesWebsocketStream(), (websocket,))


class ResponsesWebsocketStream:
    """The events of one socket."""

    def __init__(self) -> None:
        self._responses: list[openai_responses.ResponsesStream] = []
        self._current: dict[str, tuple[str, openai_responses.ResponsesStream]] = {}
        """The response that is under way in each conversation, with its id."""

        self._errors: list[Json] = []

    def take(self, event: str, data: str) -> None:
        """Take one event."""
        said = payload(data)
        lane = text(said.get("stream_id"))
        name = some(members(said.get("response")).get("id"))
        current = self._current.get(lane)
        # GitHub Copilot names its responses anew with every event.
        over = current is None or said.get("type") == "response.created" or current[1].complete
        if name and over and (current is None or current[0] != name):
            current = self._current[lane] = name, openai_responses.ResponsesStream()
            self._responses.append(current[1])
        if said.get("type") == "error" and (current is None or current[1].complete):
            # What was asked was no response at all.
            self._errors.append(said.get("error"))
        elif current is not None and event != "close":
            current[1].take("", data)

    @property
    def answer(self) -> Json:
        """The responses so far, each as the API gives it."""
        answer: dict[str, Json] = {}
        if self._responses:
            answer["responses"] = [response.answer for response in self._responses]
        return answer | ({"errors": list(self._errors)} if self._errors else {}) or None

    @property
    def complete(self) -> bool | None:
        """Whether every response that was begun came to its end; a socket of none is over when it is closed."""
        return all(response.complete for response in self._responses) if self._responses else None
