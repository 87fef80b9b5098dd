"""OpenAI's Assistants (beta): runs of threads, polled until they are done, or streamed.

A run is the call: it is started (`POST …/runs`), polled (`GET …/runs/ID`), and goes on when its tools have answered
(`…/submit_tool_outputs`). The texts are not in the run but in messages of its thread. A stream has both, so the answer made here is the run
with `messages` and `steps` added.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts, arguments_text
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import PiecedObject, parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage, header

_ID: Final = r"[^/]+"
_RUNS: Final = re.compile(rf"(?:.*/)?threads/(?:{_ID}/)?runs(?:/(?P<run>{_ID}))?(?:/(?P<verb>\w+)(?:/{_ID})?)?")
_OTHER: Final = re.compile(rf"(?:.*/)?(?P<what>assistants|threads)(?:/{_ID})?(?:/(?P<part>messages)(?:/{_ID})?)?")

_UNDONE: Final = frozenset(("queued", "in_progress", "cancelling"))


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim OpenAI's and Azure's hosts, and requests with the header of this beta: LangGraph has threads and runs too."""
    beta = header(headers, "openai-beta") or ""
    is_own_host = host.endswith(("openai.com", ".services.ai.azure.com", ".api.azureml.ms")) and "/chatkit/" not in path
    if not (is_own_host or "/openai/" in path or beta.startswith("assistants")):
        return None
    if match := _RUNS.fullmatch(path):
        return _claim_run(method, match["run"], match["verb"])
    match = _OTHER.fullmatch(path)
    return _claim_other(method, match["part"] or match["what"]) if match else None


def _claim_run(method: str, run: str | None, verb: str | None) -> Claim:
    match method, run, verb:
        case ("POST", None, None) | ("POST", str(), "submit_tool_outputs"):
            return Claim(operation="invoke_agent", kind="model")
        case "GET", str(), None:
            return Claim(operation="poll", kind="model", polls=run)
        case _:
            return _claim_other(method, verb or "runs")


def _claim_other(method: str, resource: str) -> Claim:
    operation = "create_agent" if (method, resource) == ("POST", "assistants") else f"{method.lower()}_{resource}"
    return Claim(operation=operation, kind="other")


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, unless the assistant determines it, and the results of tools."""
    request = as_object(body)
    outputs = [(one, "output") for one in map(as_object, as_array(request.get("tool_outputs")))]
    # Azure's agents ask for approval to call a tool server; the request answers in the same place.
    approvals = [(one, "approve") for one in map(as_object, as_array(request.get("tool_approvals")))]
    results = ({"id": one.get("tool_call_id"), "content": one.get(what)} for one, what in (*outputs, *approvals))
    return RequestSummary(model=as_text_or_none(request.get("model")), tool_results=tuple(results))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Summarize a run, or find the newest answer in a list of messages."""
    run = as_object(answer)
    status = as_text_or_none(run.get("status")) if run.get("object") == "thread.run" else None
    done = status not in _UNDONE
    required = as_object(run.get("required_action"))
    action = as_object(required.get("submit_tool_outputs") or required.get("submit_tool_approval"))
    usage = as_object(run.get("usage"))
    return AnswerSummary(
        model=as_text_or_none(run.get("model")),
        text=_newest_answer_text(run),
        tool_calls=tuple(_tool_call(as_object(call)) for call in as_array(action.get("tool_calls"))),
        finish_reason=as_text_or_none(as_object(run.get("incomplete_details")).get("reason"))
        or (status if done else None),
        usage=Usage(
            input_tokens=as_count(usage.get("prompt_tokens")),
            output_tokens=as_count(usage.get("completion_tokens")),
            cached_tokens=as_count(as_object(usage.get("prompt_token_details")).get("cached_tokens")),
            reasoning_tokens=as_count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        ),
        pending=None if done else as_text_or_none(run.get("id")),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a run or anything about one, streamed or not."""
    return AccumulatorAssembly(content_type, AssistantsStream())


_JOINED: Final = frozenset(("value", "arguments", "input", "logs"))


class AssistantsStream:
    """The events of one streamed run. They have names, and objects with a type."""

    def __init__(self) -> None:
        self._run: dict[str, Json] = {}
        self._entries: dict[str, dict[str, _Entry]] = {"messages": {}, "steps": {}}
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:
        """Add one event."""
        if data.strip() == "[DONE]":
            self._has_ended = True
            return
        fields = parse_payload(data)
        match as_text(fields.get("object")) or event:
            case "thread.run":
                self._run.update(fields)
            case "thread.message" | "thread.message.delta":
                self._find_entry("messages", fields).add(fields)
            case "thread.run.step" | "thread.run.step.delta":
                self._find_entry("steps", fields).add(fields)
            case "error":
                self._error = fields.get("error") or dict(fields)
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The run so far, with its messages and steps; where there is only an error, the error's own body."""
        things = {name: [one.build() for one in entries.values()] for name, entries in self._entries.items() if entries}
        if not self._run and not things:
            return None if self._error is None else {"error": self._error}
        answer: dict[str, Json] = {**self._run, **things}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def is_complete(self) -> bool:
        """Whether `[DONE]` arrived, and no error before it."""
        return self._has_ended and self._error is None

    def _find_entry(self, name: str, fields: Mapping[str, Json]) -> "_Entry":
        return self._entries[name].setdefault(as_text(fields.get("id")), _Entry())


class _Entry:
    """A message or a step while it arrives: whole at its start and its end, in pieces between."""

    def __init__(self) -> None:
        self._fields = PiecedObject(_JOINED)

    def add(self, fields: Mapping[str, Json]) -> None:
        """Add one event about it."""
        if "delta" in fields:
            self._fields.add(as_object(fields["delta"]))
            return
        # The whole object contains all pieces.
        self._fields = PiecedObject(_JOINED)
        self._fields.add(fields)

    def build(self) -> Json:
        """The message or step so far."""
        return self._fields.build()


def _newest_answer_text(answer: Mapping[str, Json]) -> str | None:
    """The text of the newest answer among messages: a stream's own, or those of a list."""
    messages = answer["messages"] if "messages" in answer else answer.get("data")
    answers = [one for one in map(as_object, as_array(messages)) if one.get("role") == "assistant"]
    if not answers:
        return None
    newest = max(answers, key=_created_at)
    parts = [as_object(as_object(part).get("text")) for part in as_array(newest.get("content"))]
    return "".join(as_text(part.get("value")) for part in parts) if parts else None


def _created_at(message: Mapping[str, Json]) -> int:
    return as_count(message.get("created_at")) or 0


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = as_object(call.get("function") or call)  # a server's tool (Azure) is named beside its id
    arguments = parse_arguments(function.get("arguments"))
    return ToolCall(id=as_text_or_none(call.get("id")), name=as_text(function.get("name")), arguments=arguments)


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a run, or the list of messages that a client fetches when it has ended; a streamed run has its message itself."""
    if parts.operation == "get_messages" and parts.text is not None and not parts.tool_calls:
        message = _composed_message(parts, parts.text)
        page: dict[str, Json] = {"object": "list", "data": [message], "has_more": False}
        return {**page, "first_id": message["id"], "last_id": message["id"]}
    if parts.operation not in ("invoke_agent", "poll"):
        return None
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
        for call in parts.tool_calls
    ]
    action: Json = {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": calls}} if calls else None
    run: dict[str, Json] = {
        **_composed_frame(parts, "thread.run", parts.path.rpartition("/")[2] if parts.operation == "poll" else None),
        "status": parts.finish_word("completed", "requires_action"),
        "required_action": action,
        "last_error": None,
        "model": parts.model,
        "instructions": "",
        "tools": [],
        "metadata": {},
        "parallel_tool_calls": True,
        "incomplete_details": None,
        "usage": parts.openai_usage,
    }
    has_message = parts.text is not None and parts.request.get("stream") is True
    return {**run, "messages": [_composed_message(parts, parts.text or "")]} if has_message else run


def _composed_frame(parts: AnswerParts, kind: str, name: str | None = None) -> dict[str, Json]:
    prefix = "msg" if kind == "thread.message" else "run"
    thread = next((word for word in parts.path.split("/") if word.startswith("thread_")), f"thread_{parts.id}")
    head: dict[str, Json] = {"id": name or f"{prefix}_{parts.id}", "object": kind, "created_at": parts.created}
    return {**head, "thread_id": thread, "assistant_id": as_text(parts.request.get("assistant_id"))}


def _composed_message(parts: AnswerParts, text: str) -> dict[str, Json]:
    content: Json = [{"type": "text", "text": {"value": text, "annotations": []}}]
    message: dict[str, Json] = {"role": "assistant", "status": "completed", "content": content, "metadata": {}}
    return {**_composed_frame(parts, "thread.message"), "run_id": f"run_{parts.id}", **message, "attachments": []}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the run as it begins, its messages and steps, and the run as it ends."""
    for kind, event in _run_events(answer):
        yield sse_message(kind, event)
    yield sse_message("done", "[DONE]")


def _run_events(answer: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    run = {name: value for name, value in answer.items() if name not in ("messages", "steps")}
    queued_run = {**run, "status": "queued", "required_action": None, "usage": None}
    yield "thread.run.created", queued_run
    yield "thread.run.in_progress", {**queued_run, "status": "in_progress"}
    for step in map(as_object, as_array(answer.get("steps"))):
        yield "thread.run.step.completed", step
    for message in map(as_object, as_array(answer.get("messages"))):
        yield "thread.message.created", {**message, "status": "in_progress", "content": []}
        pieces = [{"index": place, **as_object(part)} for place, part in enumerate(as_array(message.get("content")))]
        delta = {"id": message.get("id"), "object": "thread.message.delta", "delta": {"content": pieces}}
        yield "thread.message.delta", delta
        yield "thread.message.completed", message
    yield f"thread.run.{as_text(run.get('status')) or 'completed'}", run


DIALECT: Final = Dialect(
    name="openai_assistants",
    claim=claim,
    headers=("openai-beta",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    error_body=openai_error,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
)
