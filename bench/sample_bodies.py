"""Generate JSON bodies that look like text and compress like it. All are distinct, and a seed always gives the same
ones.
"""

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Any

_SYLLABLES = re.findall(
    "[a-z]+", "an ber con de el fa gor hin is ja ka lo mer ni or pa qui ra sen ti un ver wo xi yel zu th st al ing"
)

STAMP = 16
"""Digits of the number that makes a body distinct."""


@cache
def lexicon(seed: int, size: int = 2000) -> tuple[list[str], list[float]]:
    """Return made-up words and their cumulated weights, distributed as Zipf's law says."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(_SYLLABLES, k=draw.choice((1, 2, 2, 3, 4)))) for _ in range(size)]
    return words, list(accumulate(1 / rank for rank in range(1, size + 1)))


def prose(draw: random.Random, size: int) -> str:
    """Return text of exactly `size` characters."""
    words, weights = lexicon(7)
    text = " ".join(draw.choices(words, cum_weights=weights, k=size // 3 + 8))
    return text[:size]


class Bodies:
    """JSON bodies of exactly `size` bytes. The nth is the same in every process, and no two are equal."""

    def __init__(self, size: int, seed: int) -> None:
        draw = random.Random(seed)
        # Long ones take long to make up.
        variety = 256 if size <= 4 << 10 else 64
        self._parts = [_split(size, draw) for _ in range(variety)]

    def __getitem__(self, number: int) -> bytes:
        before, after = self._parts[number % len(self._parts)]
        return b"%s%016d%s" % (before, number, after)


def _split(size: int, draw: random.Random) -> tuple[bytes, bytes]:
    frame = {"kind": "note", "id": "0" * STAMP, "tags": draw.sample(lexicon(7)[0], 4), "limit": 20, "text": ""}
    frame["text"] = prose(draw, size - len(json.dumps(frame)))
    before, after = json.dumps(frame).split("0" * STAMP, 1)
    return before.encode(), after.encode()


type Message = dict[str, Any]


def talk(run: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield request and response of each turn of a conversation with a person. Each request repeats the whole history."""
    draw = random.Random(run)
    messages: list[Message] = [{"role": "system", "content": prose(draw, 3000)}]
    for turn in range(count):
        messages.append({"role": "user", "content": prose(draw, draw.randint(600, 900))})
        answer: Message = {"role": "assistant", "content": prose(draw, draw.randint(600, 900))}
        yield _request_body(messages), _answer_body(run, turn, answer, "stop")
        messages.append(answer)


def agent(run: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield request and response of each turn of an agent, which calls one of twelve tools in each turn. All runs have
    the same tools.
    """
    draw = random.Random(run)
    messages: list[Message] = [{"role": "system", "content": prose(random.Random(11), 3000)}]
    messages.append({"role": "user", "content": prose(draw, 400)})
    for turn in range(count):
        identity = f"call_{draw.getrandbits(96):024x}"
        function = {
            "name": f"tool_{draw.randrange(12)}",
            "arguments": json.dumps({"query": prose(draw, 120), "limit": 20}),
        }
        tool_call = {"id": identity, "type": "function", "function": function}
        answer: Message = {"role": "assistant", "content": prose(draw, 200), "tool_calls": [tool_call]}
        yield _request_body(messages, tools=_tools()), _answer_body(run, turn, answer, "tool_calls")
        result = prose(draw, draw.randint(1000, 3000))
        messages += [answer, {"role": "tool", "tool_call_id": identity, "content": result}]


@cache
def _tools() -> list[Message]:
    draw = random.Random(13)
    properties = {"query": {"type": "string", "description": prose(draw, 200)}, "limit": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    functions = [{"name": f"tool_{n}", "description": prose(draw, 700), "parameters": schema} for n in range(12)]
    return [{"type": "function", "function": function} for function in functions]


def _request_body(messages: list[Message], **more: Any) -> bytes:
    return json.dumps({"model": "gpt-4.1-mini", "messages": messages, "temperature": 0.2, **more}).encode()


def _answer_body(run: int, turn: int, answer: Message, why: str) -> bytes:
    return json.dumps(
        {
            "id": f"chatcmpl-{run:08d}{turn:04d}",
            "object": "chat.completion",
            "created": 1790000000 + turn,
            "model": "gpt-4.1-mini-2026-04-14",
            "choices": [{"index": 0, "message": answer, "finish_reason": why}],
            "usage": {"prompt_tokens": 900 + turn, "completion_tokens": 180, "total_tokens": 1080 + turn},
        }
    ).encode()
