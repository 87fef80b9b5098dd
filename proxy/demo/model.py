"""The stand-in for a model API: what chat completions answers to a support agent.

What it says follows from what it is asked, so that a run can be told as a story. Its ids and times are new each
time, as a real provider's are: only a recording can repeat them.
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
    """What the model says to one request."""

    text: str
    tool_calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.tool_calls else "stop"


def reply(conversation: Conversation) -> Reply:
    """What the model says next: first it asks for tools, then it sums up what they gave."""
    results = [json.loads(message["content"]) for message in conversation if message["role"] == "tool"]
    return summary(results) if results else plan(question(conversation))


def question(conversation: Conversation) -> str:
    return next(str(message["content"]) for message in reversed(conversation) if message["role"] == "user")


def plan(asked: str) -> Reply:
    topic = next((word for word in ("refund", "login", "invoice") if word in asked.lower()), "open")
    search = {"query": topic, "status": "open", "limit": 3}
    note = {"ticket": "T-1042", "text": f"An agent is looking at the {topic} tickets. Please do not answer twice."}
    return Reply(
        text=f"I will look up the {topic} tickets and leave a note on the oldest one, so that nobody answers it twice.",
        tool_calls=(("search_tickets", search), ("add_note", note)),
    )


def summary(results: list[dict[str, Any]]) -> Reply:
    tickets = [ticket for result in results for ticket in result.get("tickets", ())]
    notes = [result["id"] for result in results if "author" in result]
    lines = [f"{ticket['id']} from {ticket['customer']}: {ticket['subject']}" for ticket in tickets]
    head = f"There are {len(tickets)} open tickets."
    tail = f"The oldest has waited {max((ticket['days'] for ticket in tickets), default=0)} days; my note is {', '.join(notes)}."
    return Reply(text="\n".join([head, *lines, tail]))


def whole(said: Reply, prompt: int) -> bytes:
    """The answer to a request without `stream`, as the API sends it."""
    message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
    if said.tool_calls:
        message["tool_calls"] = [described(index, call) for index, call in enumerate(said.tool_calls)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": said.finish_reason}
    body = {**envelope("chat.completion"), "choices": [choice], "usage": usage(said, prompt)}
    return json.dumps(body).encode()


def streamed(said: Reply, prompt: int, *, with_usage: bool) -> Iterator[bytes]:
    """The same answer as server-sent events, one for each word and each piece of an argument."""
    head = envelope("chat.completion.chunk")
    deltas = chain([{"role": "assistant", "content": ""}], spoken(said.text), asked_for(said))
    for delta in deltas:
        yield event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": said.finish_reason}]})
    if with_usage:
        yield event({**head, "choices": [], "usage": usage(said, prompt)})
    yield b"data: [DONE]\n\n"


def spoken(text: str) -> Iterator[dict[str, Any]]:
    for index, word in enumerate(text.split(" ")):
        yield {"content": word if index == 0 else f" {word}"}


def asked_for(said: Reply) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(said.tool_calls):
        opening = described(index, call)
        arguments = opening["function"]["arguments"]
        opening["function"]["arguments"] = ""
        yield {"tool_calls": [opening]}
        for at in range(0, len(arguments), 12):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 12]}}]}


def described(index: int, call: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    name, arguments = call
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def envelope(kind: str) -> dict[str, Any]:
    made = {"id": f"chatcmpl-{secrets.token_hex(14)}", "object": kind, "created": int(time.time()), "model": MODEL}
    return {**made, "service_tier": "default", "system_fingerprint": FINGERPRINT}


def usage(said: Reply, prompt: int) -> dict[str, Any]:
    """Tokens as if each were four bytes: near enough for a price, and stated by the answer as a real one does."""
    completion = len(said.text) // 4 + sum(len(json.dumps(call)) // 4 for call in said.tool_calls)
    counts = {"prompt_tokens": prompt // 4, "completion_tokens": completion, "total_tokens": prompt // 4 + completion}
    return {
        **counts,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
