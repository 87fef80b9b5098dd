"""A model API for any framework: what it says is written in what it is asked, and is new every time.

The last message of the user holds the script, one step for each answer: `[[name {"argument": 1}]]` calls a tool, several
side by side at once, steps are parted by `->`, and a step without a call is said as it stands. So no framework needs a
stand-in of its own. Its ids, times and the tool server's numbers are drawn anew: only a recording can repeat them.
"""

import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from proxy.demo.servers import Handler, start_server

type Json = Any
type Called = tuple[str, str]
"""A tool's name and its arguments, as JSON."""

_CALL = re.compile(r"\[\[(\w+) (\{.*?\})\]\]")
MODEL = "scripted-2026-11-01"


def step(script: str, answered: int) -> tuple[str, list[Called]]:
    """What the model says after so many answers to this script: a text, or calls."""
    steps = [part.strip() for part in script.split("->")]
    now = steps[answered] if answered < len(steps) else "That is all."
    return ("", calls) if (calls := _CALL.findall(now)) else (now, [])


def chat_step(messages: list[dict[str, Json]]) -> tuple[str, list[Called]]:
    """The next step of a chat completion."""
    last = max(n for n, message in enumerate(messages) if message["role"] == "user")
    return step(_plain(messages[last]["content"]), sum(message["role"] == "assistant" for message in messages[last:]))


def response_step(given: str | list[dict[str, Json]]) -> tuple[str, list[Called]]:
    """The next step of a response: one answer's calls stand side by side, and their results behind them."""
    if isinstance(given, str):
        return step(given, 0)
    last = max(n for n, item in enumerate(given) if item.get("role") == "user")
    kinds = ["said" if item.get("type") == "function_call" or item.get("role") == "assistant" else "" for item in given]
    answers = sum(kind == "said" != before for before, kind in zip(["", *kinds[last:]], kinds[last:], strict=False))
    return step(_plain(given[last]["content"]), answers)


def _plain(content: Json) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


# -- chat completions


def chat(asked: dict[str, Json]) -> dict[str, Json]:
    text, calls = chat_step(asked["messages"])
    message: dict[str, Json] = {"role": "assistant", "content": text or None, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for name, arguments in calls
        ]
    finish = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    head = {"id": f"chatcmpl-{secrets.token_hex(8)}", "object": "chat.completion", "created": int(time.time())}
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    return {**head, "model": MODEL, "choices": [choice], "usage": usage}


def chat_events(asked: dict[str, Json]) -> Iterator[bytes]:
    whole = chat(asked)
    head = {**whole, "object": "chat.completion.chunk"}
    usage, message = head.pop("usage"), whole["choices"][0]["message"]
    deltas: list[dict[str, Json]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in re.findall(r"\S+\s*", message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        deltas.append({"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in (arguments[:4], arguments[4:])
        ]
    finish = whole["choices"][0]["finish_reason"]
    for delta, reason in (*((delta, None) for delta in deltas), ({}, finish)):
        yield _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield _data({**head, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


# -- responses


def response(asked: dict[str, Json]) -> dict[str, Json]:
    text, calls = response_step(asked["input"])
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    message = {"id": f"msg_{secrets.token_hex(8)}", "type": "message", "status": "completed", "role": "assistant"}
    output: list[dict[str, Json]] = [{**message, "content": content}] if not calls else []
    for name, arguments in calls:
        ids = {"id": f"fc_{secrets.token_hex(8)}", "call_id": f"call_{secrets.token_hex(8)}"}
        output.append({**ids, "type": "function_call", "status": "completed", "name": name, "arguments": arguments})
    usage = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 25}
    settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": asked.get("tools", []), "error": None}
    head = {"id": f"resp_{secrets.token_hex(8)}", "object": "response", "created_at": int(time.time()), "model": MODEL}
    more: dict[str, Json] = {
        "instructions": asked.get("instructions"),
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "incomplete_details": None,
    }
    return {**head, "status": "completed", **settings, **more, "output": output, "usage": usage}


def response_events(asked: dict[str, Json]) -> Iterator[bytes]:
    whole = response(asked)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    result: list[dict[str, Json]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(whole["output"]):
        result += _item_events(index, item)
    result.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(result):
        yield f"event: {event['type']}\n".encode() + _data({**event, "sequence_number": number})


def _item_events(index: int, item: dict[str, Json]) -> Iterator[dict[str, Json]]:
    where = {"item_id": item["id"], "output_index": index}
    empty: dict[str, Json] = {"content": []} if item["type"] == "message" else {"arguments": ""}
    yield {
        "type": "response.output_item.added",
        "output_index": index,
        "item": {**item, "status": "in_progress", **empty},
    }
    if item["type"] == "message":
        (part,) = item["content"]
        at = {**where, "content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
        for word in re.findall(r"\S+\s*", part["text"]):
            yield {"type": "response.output_text.delta", **at, "delta": word, "logprobs": []}
        yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **at, "part": part}
    else:
        yield {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]}
        yield {
            "type": "response.function_call_arguments.done",
            **where,
            "arguments": item["arguments"],
            "name": item["name"],
        }
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _data(event: dict[str, Json]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


class ScriptedApi(Handler):
    """The model API, a weather service, and whatever takes telemetry."""

    asked: ClassVar[list[str]] = []
    """The path of every request that came."""

    _lock: ClassVar[threading.Lock] = threading.Lock()

    def do_POST(self) -> None:  # noqa: N802 - the name that the base class looks for
        body = self.read_json()
        path = urlsplit(self.path).path
        self._note_path(path)
        match path:
            case "/v1/chat/completions" if body.get("stream"):
                self.answer_in_pieces(chat_events(body), 0.001)
            case "/v1/chat/completions":
                self.answer(200, json.dumps(chat(body)).encode())
            case "/v1/responses" if body.get("stream"):
                self.answer_in_pieces(response_events(body), 0.001)
            case "/v1/responses":
                self.answer(200, json.dumps(response(body)).encode())
            case "/v1/traces/ingest":
                self.begin_answer(204, "application/json")
                self.end_headers()
            case _:
                self.answer_not_found()

    def do_GET(self) -> None:  # noqa: N802 - likewise
        url = urlsplit(self.path)
        self._note_path(url.path)
        city = parse_qs(url.query).get("city", ["?"])[0]
        self.answer(200, json.dumps({"city": city, "degrees": secrets.randbelow(60) - 20, "at": time.time()}).encode())

    def _note_path(self, path: str) -> None:
        with self._lock:
            self.asked.append(path)


@contextmanager
def serve_scripted(port: int) -> Iterator[ThreadingHTTPServer]:
    """The stand-in, answering; it forgets what others asked it."""
    ScriptedApi.asked.clear()
    server = start_server(ScriptedApi, port)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
