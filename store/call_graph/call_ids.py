"""The ids that connect a call with others: those that its answer creates and those that its request returns. Pure."""

from calls.codec.lenient_json import as_object, as_text_or_none
from calls.model import Call

MAX_IDS = 500
"""The number of ids that are kept of one call."""


def created_ids(call: Call) -> list[str]:
    """Return the ids that a model's answer creates: those of its tool calls, and its own if a request can continue it."""
    if call.kind != "model":
        return []
    tool_call_ids = [tool.id for tool in call.tool_calls]
    return _distinct(
        [
            *tool_call_ids,
            as_text_or_none(as_object(call.answer).get("id")) if call.dialect == "openai_responses" else None,
        ]
    )


def returned_ids(call: Call) -> list[str]:
    """Return the ids that a request to a model returns: of tool calls whose results it has, and of the answer it continues."""
    if call.kind != "model":
        return []
    own_ids = {tool.id for tool in call.tool_calls}
    # The result of a tool that the provider runs itself is in the same answer as the tool call.
    brought = [as_text_or_none(as_object(result).get("id")) for result in call.tool_results]
    before = as_text_or_none(as_object(call.request).get("previous_response_id"))
    return [one for one in _distinct([*brought, before]) if one not in own_ids]


def _distinct(ids: list[str | None]) -> list[str]:
    return list(dict.fromkeys(one for one in ids if one))[:MAX_IDS]
