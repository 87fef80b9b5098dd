"""A run as lines of JSON that a judge reads: what the user asked, what models answered and requested, what tools returned."""

from collections.abc import Iterator
from typing import Any, Final

from calls.checking.checked_run import CheckedRun, RequestedTool
from calls.codec.json import dumps
from calls.model import Json

LONGEST_TEXT: Final = 4_000
"""Characters of one text. What is longer is cut, and says so."""

LONGEST: Final = 60_000
"""Characters of a transcript. Of a longer one, lines from the middle are left out, and a line says how many."""


def run_transcript(run: CheckedRun) -> tuple[str, ...]:
    """Return the lines, each a JSON object without line breaks. The first are what the user wrote."""
    lines = [_line(one) for one in _entries(run)]
    size = sum(map(len, lines))
    if size <= LONGEST:
        return tuple(lines)
    head, tail, used = list[str](), list[str](), 0
    first, last = 0, len(lines) - 1
    while first <= last:
        # From both ends in turn: a run's beginning says what was asked, its end what became of it.
        line = lines[first] if len(head) <= len(tail) else lines[last]
        used += len(line)
        if used > LONGEST:
            break
        if len(head) <= len(tail):
            head.append(line)
            first += 1
        else:
            tail.append(line)
            last -= 1
    return (*head, _line({"left_out": last - first + 1, "because": "the transcript is too long"}), *reversed(tail))


def _entries(run: CheckedRun) -> Iterator[dict[str, Any]]:
    for text in run.user_texts:
        yield {"user": _cut_text(text)}
    results = _results_by_step(run)
    for step in run.steps:
        for tool, result in results.get(step.number, ()):
            yield {"step": step.number, "result_of": tool.name, "result": _cut_json(result)}
        if step.call.kind != "model":
            yield {"step": step.number, "called": step.target, "status": step.status}
            continue
        entry: dict[str, Any] = {"step": step.number, "model": step.model}
        if step.call.text:
            entry["answer"] = _cut_text(step.call.text)
        if step.call.tool_calls:
            entry["tool_calls"] = [
                {"name": tool.name, "arguments": _cut_json(tool.arguments)} for tool in step.call.tool_calls
            ]
        if step.status is None or step.status >= 400:
            entry["failed"] = step.status
        yield entry


def _results_by_step(run: CheckedRun) -> dict[int, list[tuple[RequestedTool, Json]]]:
    found: dict[int, list[tuple[RequestedTool, Json]]] = {}
    for tool in run.tools:
        if result := run.tool_result(tool):
            found.setdefault(result[0], []).append((tool, result[1]))
    return found


def _line(entry: dict[str, Any]) -> str:
    return dumps(entry).decode("utf-8", "replace")


def _cut_text(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"


def _cut_json(value: Json) -> Json:
    text = dumps(value).decode("utf-8", "replace")
    return value if len(text) <= LONGEST_TEXT else _cut_text(text)
