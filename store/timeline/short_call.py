"""Shorten a call to what is looked at first: its messages and its answer, without its bodies. Pure."""

from typing import Any, Final

from calls.codec.json import dumps
from calls.dialects.generic import DIALECT as GENERIC
from store.timeline.conversation import MOST_TOOL_CALLS, make_conversation
from store.timeline.facts import SpokenCall, ToolLinks

LONGEST_TEXT: Final = 64 << 10
"""Characters of one text."""

type Shape = dict[str, Any]


def short_call(call: Shape, *, shows_texts: bool = True) -> Shape:
    """Return a call of the REST API with `said` in place of its bodies, and with its first tool calls alone."""
    spoken = SpokenCall(
        call=call["id"],
        number=call["step"],
        kind=call["kind"],
        actor=call["actor"],
        request=_plain_request(call) if call["dialect"] == GENERIC.name else call["request"],
        answer=call["answer"],
        text=call["text"],
        tool_calls=call["tool_calls"],
    )
    [document] = make_conversation([spoken], ToolLinks(), shows_texts=shows_texts, longest_text=LONGEST_TEXT)
    if not document["answer"] and not shows_texts:
        document["response"] = None
    return call | {
        "request": None,
        "answer": None,
        "tool_results": [],
        "text": None if call["text"] is None else call["text"][:LONGEST_TEXT],
        "tool_calls": call["tool_calls"][:MOST_TOOL_CALLS],
        "said": {name: document[name] for name in ("prompt", "answer", "request", "response")},
    }


def _plain_request(call: Shape) -> str:
    """A request that no dialect knows is its address, and its body if it has one."""
    address = f"{call['method']} {call['host']}{call['path'] or ''}"
    if call["request"] in (None, ""):
        return address
    body = call["request"] if isinstance(call["request"], str) else dumps(call["request"]).decode()
    return f"{address}\n\n{body}"
