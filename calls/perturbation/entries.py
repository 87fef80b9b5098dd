"""Write edits as overrides, which `playhead replay --override` and `playhead fork --override` accept."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from calls.codec.json import dumps
from calls.perturbation.edits import AnswerEdit, AnswerPlace, AppliedEdits, ToolAnswer, apply_edits


def override_entries(answers: Sequence[ToolAnswer], edits: Sequence[AnswerEdit]) -> list[dict[str, Any]]:
    """Return the overrides that make these edits."""
    applied = apply_edits(answers, edits)
    forms = {answer.step: answer.form for answer in answers}
    entries: list[dict[str, Any]] = [
        {"step": step, "patch": [plain_json(one) for one in operations]}
        if forms[step] == "body"
        else {"step": step, "tool_result": _mcp_result(forms[step], plain_json(applied.documents[step]))}
        for step, operations in sorted(applied.operations.items())
    ]
    entries += [{"step": step, "fault": dict(fault)} for step, fault in applied.faults]
    return entries + _renamed_requests(answers, applied)


def _mcp_result(form: AnswerPlace, value: Any) -> dict[str, Any]:
    """Return a result of MCP with this value, in the form in which the tool gave it."""
    if form == "MCP content":
        return {"content": value}
    text = {"content": [{"type": "text", "text": dumps(value).decode()}]}
    return {**text, "structuredContent": value} if form == "MCP structured" else text


def _renamed_requests(answers: Sequence[ToolAnswer], applied: AppliedEdits) -> list[dict[str, Any]]:
    """Return overrides that answer requests for a renamed thing, which was recorded under its old id."""
    entries: list[dict[str, Any]] = []
    for answer in answers:
        path = answer.path
        for old, new in applied.renamed.items():
            path = path.replace(old, new)
        if path != answer.path and answer.form == "body":
            match = {"method": answer.method, "host": answer.host, "path": _literal(path)}
            body = plain_json(applied.documents[answer.step])
            entries.append({"match": match, "answer": {"status": answer.status, "body": body}})
    return entries


def _literal(path: str) -> str:
    return path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def plain_json(value: Any) -> Any:
    """Return a value as `json` writes it: exact decimals become numbers."""
    match value:
        case Mapping():
            return {name: plain_json(one) for name, one in value.items()}
        case list() | tuple():
            return [plain_json(one) for one in value]
        case Decimal():
            return float(value)
        case _:
            return value
