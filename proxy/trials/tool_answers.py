"""The answers of tools in recordings, each with the shape that all known answers of its tool have."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from calls.codec.json import InvalidJson, parse_json
from calls.codec.lenient_json import as_object
from calls.derive import derive_keyed_call
from calls.model import Call, Exchange, Json
from calls.perturbation.edits import AnswerPlace, ToolAnswer
from calls.perturbation.shape import AnswerShape
from calls.route import route_request
from proxy.trials.outcome import step_kind
from replay.playback import is_websocket
from store.diff.steps import StepReader
from store.query.rest_shapes import path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAnswer:
    """One answer of a tool, and the tool's name: that of MCP, or method, host and path without ids."""

    tool: str
    step: int
    exchange: Exchange
    call: Call
    form: AnswerPlace
    value: Json
    """What the tool chose."""


def in_step_order(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Return exchanges in the order of their steps."""
    return sorted(exchanges, key=lambda each: (each.started_at, each.id))


def find_tool_answers(exchanges: Sequence[Exchange], reading: StepReader) -> Iterator[FoundAnswer]:
    """Yield the whole JSON answers of tools, of exchanges in step order."""
    for step, exchange in enumerate(exchanges, 1):
        if exchange.response is None or exchange.response.status >= 300 or is_websocket(exchange):
            continue
        key = reading.key(exchange)
        if key.kind == "model":
            continue
        call = derive_keyed_call(exchange, key)
        names = [one.name for one in call.tool_calls]
        if not call.complete or (found := _chosen_value(call.dialect, names, call.answer)) is None:
            continue
        form, value = found
        tool = names[0] if call.dialect == "mcp" else step_kind(f"{exchange.request.method} {exchange.request.url}")
        yield FoundAnswer(tool=tool, step=step, exchange=exchange, call=call, form=form, value=value)


def tool_answer(item: Mapping[str, Any]) -> tuple[str, Json] | None:
    """Return the tool of a call in a list of the store, and what it chose; None for a call of a model, or without JSON."""
    names = [one["name"] for one in item["tool_calls"]]
    if item["kind"] == "model" or not item["complete"]:
        return None
    found = _chosen_value(item["dialect"], names, item["answer"])
    if found is None:
        return None
    is_mcp = item["dialect"] == "mcp"
    return names[0] if is_mcp else step_kind(f"{item['method']} http://{item['host']}{item['path']}"), found[1]


def _chosen_value(dialect: str, names: Sequence[str], answer: Json) -> tuple[AnswerPlace, Json] | None:
    """Return what a tool chose of its answer; None if that is no JSON, or none that a tool of MCP was called for."""
    if not isinstance(answer, Mapping | list):
        return None
    if dialect != "mcp":
        return "body", answer
    return _mcp_value(answer) if names else None


def _mcp_value(answer: Json) -> tuple[AnswerPlace, Json] | None:
    """Return what an MCP tool chose; None if its result has no content."""
    result = as_object(as_object(answer).get("result"))
    if result.get("structuredContent") is not None:
        return "MCP structured", result["structuredContent"]
    content = result.get("content")
    if not isinstance(content, list | tuple) or not content:
        return None
    only = as_object(content[0])
    if len(content) == 1 and isinstance(only.get("text"), str):
        try:
            value = parse_json(str(only["text"]).encode("utf-8", "replace"))
        except InvalidJson:
            return "MCP content", content
        if isinstance(value, Mapping | list):
            return "MCP text", value
    return "MCP content", content


def with_shapes(
    answers: Iterable[FoundAnswer], learned: Mapping[str, AnswerShape], shapes_by_pattern: Mapping[str, AnswerShape]
) -> list[ToolAnswer]:
    """Return the answers of a run with the shapes of their tools: the given ones, by patterns of names, before those learned."""
    return [
        ToolAnswer(
            step=one.step,
            value=one.value,
            shape=next(
                (shape for pattern, shape in shapes_by_pattern.items() if fnmatchcase(one.tool, pattern)),
                learned[one.tool],
            ),
            form=one.form,
            is_retrieval=one.call.kind == "retrieval",
            method=one.exchange.request.method,
            host=route_request(one.exchange.request).host,
            path=path_of(one.exchange.request.url) or "/",
            status=one.exchange.response.status if one.exchange.response else 200,
        )
        for one in answers
    ]
