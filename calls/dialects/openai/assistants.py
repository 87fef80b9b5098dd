"""OpenAI's Assistants (beta): runs of threads, polled until they are done, or streamed.

A run is the call: it is started (`POST …/runs`), polled (`GET …/runs/ID`), and goes on when its tools have answered
(`…/submit_tool_outputs`). What was said is not in the run but in messages of its thread; a stream tells both, so its answer is the run with the
messages and steps that it brought beside it, as `messages` and `steps`.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import PiecedObject, arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage, header

NAME: Final = "openai_assistants"

_ID: Final = r"[^/]+"
_RUNS: Final = re.compile(rf"(?:.*/)?threads/(?:{_ID}/)?runs(?:/(?P<run>{_ID}))?(?:/(?P<verb>\w+)(?:/{_ID})?)?")
_OTHER: Final = re.compile(rf"(?:.*/)?(?P<what>assistants|threads)(?:/{_ID})?(?:/(?P<part>messages)(?:/{_ID})?)?")

_UNDONE: Final = frozenset(("queued", "in_progress", "cancelling"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """OpenAI's and Azure's, or whoever is asked for this beta: LangGraph has threads and runs too."""
    beta = header(headers, "openai-beta") or ""
    ours = host.endswith(("openai.com", ".services.ai.azure.com", ".api.azureml.ms")) and "/chatkit/" not in path
    if not (ours or "/openai/" in path or beta.startswith("assistants")):
        return None
    if match := _RUNS.fullmatch(path):
        return _claim_of_run(method, match["run"], match["verb"])
    match = _OTHER.fullmatch(path)
    return _other(method, match["part"] or match["what"]) if match else None


def _claim_of_run(method: str, run: str | None, verb: str | None) -> Claim:
    match method, run, verb:
        case ("POST", None, None) | ("POST", str(), "submit_tool_outputs"):
            return Claim(dialect=NAME, operation="invoke_agent", kind="model")
        case "GET", str(), None:
            return Claim(dialect=NAME, operation="poll", kind="model", polls=run)
        case _:
            return _other(method, verb or "runs")


def _other(method: str, what: str) -> Claim:
    operation = "create_agent" if (method, what) == ("POST", "assistants") else f"{method.lower()}_{what}"
    return Claim(dialect=NAME, operation=operation, kind="other")


def asked(body: Json) -> RequestSummary:
    """The model, where it is not the assistant's own, and what tools answered."""
    request = members(body)
    outputs = [(one, "output") for one in map(members, elements(request.get("tool_outputs")))]
    # Azure's agents ask whether they may call a server of tools, and are told so in the same place.
    approvals = [(one, "approve") for one in map(members, elements(request.get("tool_approvals")))]
    results = ({"id": one.get("tool_call_id"), "content": one.get(what)} for one, what in (*outputs, *approvals))
    return RequestSummary(model=some(request.get("model")), tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What a run says, or the newest answer in a list of messages."""
    run = members(answer)
    status = some(run.get("status")) if run.get("object") == "thread.run" else None
    done = status not in _UNDONE
    required = members(run.get("required_action"))
    action = members(required.get("submit_tool_outputs") or required.get("submit_tool_approval"))
    usage = members(run.get("usage"))
    return AnswerSummary(
        model=some(run.get("model")),
        text=_newest(run),
        tool_calls=tuple(_tool_call(members(call)) for call in elements(action.get("tool_calls"))),
        finish_reason=some(members(run.get("incomplete_details")).get("reason")) or (status if done else None),
        usage=Usage(
            input_tokens=count(usage.get("prompt_tokens")),
            output_tokens=count(usage.get("completion_tokens")),
            cached_tokens=count(members(usage.get("prompt_token_details")).get("cached_tokens")),
            reasoning_tokens=count(members(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        ),
        pending=None if done else some(run.get("id")),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a run or anything about one, streamed or not."""
    return AccumulatorAssembly(content_type, AssistantsStream())


_JOINED: Final = frozenset(("value", "arguments", "input", "logs"))


class AssistantsStream:
    """The events of one streamed run. They are named, and say what they are about."""

    def __init__(self) -> None:
        self._run: dict[str, Json] = {}
        self._told: dict[str, dict[str, _Thing]] = {"messages": {}, "steps": {}}
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:
        """Take one event."""
        if data.strip() == "[DONE]":
            self._done = True
            return
        said = payload(data)
        match text(said.get("object")) or event:
            case "thread.run":
                self._run.update(said)
            case "thread.message" | "thread.message.delta":
                self._thing("messages", said).take(said)
            case "thread.run.step" | "thread.run.step.delta":
                self._thing("steps", said).take(said)
            case "error":
                self._error = said.get("error") or dict(said)
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The run so far, with what it brought; where there is only an error, the error's own body."""
        things = {name: [one.whole() for one in kept.values()] for name, kept in self._told.items() if kept}
        if not self._run and not things:
            return None if self._error is None else {"error": self._error}
        answer: dict[str, Json] = {**self._run, **things}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def complete(self) -> bool:
        """Whether `[DONE]` came, and no error before it."""
        return self._done and self._error is None

    def _thing(self, name: str, said: Mapping[str, Json]) -> "_Thing":
        return self._told[name].setdefault(text(said.get("id")), _Thing())


class _Thing:
    """A message or a step while it comes: told whole at its begin and its end, in pieces between."""

    def __init__(self) -> None:
        self._grown = PiecedObject(_JOINED)

    def take(self, said: Mapping[str, Json]) -> None:
        """Take one event about it."""
        if "delta" in said:
            self._grown.take(members(said["delta"]))
            return
        # Whatever came in pieces is told again, whole.
        self._grown = PiecedObject(_JOINED)
        self._grown.take(said)

    def whole(self) -> Json:
        """The message or step so far."""
        return self._grown.whole()


def _newest(answer: Mapping[str, Json]) -> str | None:
    """The text of the newest answer among messages: a stream's own, or those of a list."""
    listed = answer["messages"] if "messages" in answer else answer.get("data")
    said = [one for one in map(members, elements(listed)) if one.get("role") == "assistant"]
    if not said:
        return None
    newest = max(said, key=_created)
    parts = [members(members(part).get("text")) for part in elements(newest.get("content"))]
    return "".join(text(part.get("value")) for part in parts) if parts else None


def _created(message: Mapping[str, Json]) -> int:
    return count(message.get("created_at")) or 0


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = members(call.get("function") or call)  # a server's tool (Azure) is named beside its id
    arguments = arguments_of(function.get("arguments"))
    return ToolCall(id=some(call.get("id")), name=text(function.get("name")), arguments=arguments)
