"""The ids that connect a call to others: those that its answer makes and those that its request sends. Pure."""

from calls.codec.lenient_json import members, some
from calls.model import Call

MOST = 500
"""Ids of one call."""


def gives(call: Call) -> list[str]:
    """Ids that the answer of a model makes: of the tool calls that it asks for, and its own where it can be gone on from."""
    if call.kind != "model":
        return []
    made = [tool.id for tool in call.tool_calls]
    return _distinct([*made, some(members(call.answer).get("id")) if call.dialect == "openai_responses" else None])


def takes(call: Call) -> list[str]:
    """Ids that the request to a model hands back: of the tool calls whose results it brings, and of the answer before."""
    if call.kind != "model":
        return []
    made = {tool.id for tool in call.tool_calls}
    # A tool that the provider ran itself has its result in the answer that asked for it.
    brought = [some(members(result).get("id")) for result in call.tool_results]
    before = some(members(call.request).get("previous_response_id"))
    return [one for one in _distinct([*brought, before]) if one not in made]


def _distinct(ids: list[str | None]) -> list[str]:
    return list(dict.fromkeys(one for one in ids if one))[:MOST]
