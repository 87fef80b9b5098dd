"""A fake model API: the answers of chat completions to a support agent.

The text follows from the request. Ids and times are new for each answer, as a real provider's are, so that only a
recording can repeat them.
"""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

type Conversation = list[dict[str, Any]]

MODEL = "example-large-2026-08-01"
FINGERPRINT = "fp_3f1c9a7be2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The model's reply to one request."""

    text: str
    tool_calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.tool_calls else "stop"


def next_reply(conversation: Conversation) -> Reply:
    """Return the model's next reply: first it requests tools, then it summarizes their results."""
    results = [json.loads(message["content"]) for message in conversation if message["role"] == "tool"]
    return summarize_results(results) if results else plan_tool_calls(last_question(conversation))


def last_question(conversation: Conversation) -> str:
    return next(str(message["content"]) for message in reversed(conversation) if message["role"] == "user")


def plan_tool_calls(question: str) -> Reply:
    topic = next((word for word in ("refund", "login", "invoice") if word in question.lower()), "open")
    search = {"query": topic, "status": "open", "limit": 3}
    note = {"ticket": "T-1042", "text": f"An agent is looking at the {topic} tickets. Please do not answer twice."}
    return Reply(
        text=f"I will look up the {topic} tickets and leave a note on the oldest one, so that nobody answers it twice.",
        tool_calls=(("search_tickets", search), ("add_note", note)),
    )


def summarize_results(results: list[dict[str, Any]]) -> Reply:
    tickets = [ticket for result in results for ticket in result.get("tickets", ())]
    notes = [result["id"] for result in results if "author" in result]
    lines = [f"{ticket['id']} from {ticket['customer']}: {ticket['subject']}" for ticket in tickets]
    head = f"There are {len(tickets)} open tickets."
    tail = f"The oldest has waited {max((ticket['days'] for ticket in tickets), default=0)} days; my note is {', '.join(notes)}."
    return Reply(text="\n".join([head, *lines, tail]))


def whole_answer(reply: Reply, prompt: int) -> bytes:
    """Encode the answer to a request without `stream`."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.tool_calls:
        message["tool_calls"] = [tool_call_object(index, call) for index, call in enumerate(reply.tool_calls)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
    body = {**envelope("chat.completion"), "choices": [choice], "usage": usage(reply, prompt)}
    return json.dumps(body).encode()


def streamed_answer(reply: Reply, prompt: int, *, with_usage: bool) -> Iterator[bytes]:
    """Encode the answer as server-sent events, one for each word and each piece of an argument."""
    head = envelope("chat.completion.chunk")
    deltas = chain([{"role": "assistant", "content": ""}], text_deltas(reply.text), tool_call_deltas(reply))
    for delta in deltas:
        yield encode_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield encode_event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]})
    if with_usage:
        yield encode_event({**head, "choices": [], "usage": usage(reply, prompt)})
    yield b"data: [DONE]\n\n"


def text_deltas(text: str) -> Iterator[dict[str, Any]]:
    for index, word in enumerate(text.split(" ")):
        yield {"content": word if index == 0 else f" {word}"}


def tool_call_deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(reply.tool_calls):
        opening = tool_call_object(index, call)
        arguments = opening["function"]["arguments"]
        opening["function"]["arguments"] = ""
        yield {"tool_calls": [opening]}
        for at in range(0, len(arguments), 12):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 12]}}]}


def tool_call_object(index: int, call: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    name, arguments = call
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def envelope(kind: str) -> dict[str, Any]:
    members = {"id": f"chatcmpl-{secrets.token_hex(14)}", "object": kind, "created": int(time.time()), "model": MODEL}
    return {**members, "service_tier": "default", "system_fingerprint": FINGERPRINT}


def usage(reply: Reply, prompt: int) -> dict[str, Any]:
    """Count tokens as four bytes each, in the form of a real answer's usage."""
    completion = len(reply.text) // 4 + sum(len(json.dumps(call)) // 4 for call in reply.tool_calls)
    counts = {"prompt_tokens": prompt // 4, "completion_tokens": completion, "total_tokens": prompt // 4 + completion}
    return {
        **counts,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def encode_event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
