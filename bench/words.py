"""Bodies of a given size that read like text, no two alike: what compresses too well would flatter a recorder."""

import json
import random
import re
from collections.abc import Iterator
from itertools import accumulate

_SYLLABLES = re.findall(
    "[a-z]+", "an ber con de el fa gor hin is ja ka lo mer ni or pa qui ra sen ti un ver wo xi yel zu th st al ing"
)

STAMP = 16
"""Digits of the number that makes a body distinct."""


def lexicon(seed: int, size: int = 2000) -> tuple[list[str], list[float]]:
    """Made-up words and, as Zipf has it, how often each is used (cumulated)."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(_SYLLABLES, k=draw.choice((1, 2, 2, 3, 4)))) for _ in range(size)]
    return words, list(accumulate(1 / rank for rank in range(1, size + 1)))


def prose(draw: random.Random, size: int) -> str:
    """Exactly `size` characters of it."""
    words, weights = lexicon(7)
    text = " ".join(draw.choices(words, cum_weights=weights, k=size // 3 + 8))
    return text[:size]


class Bodies:
    """JSON bodies of exactly `size` bytes; the nth is the same in every process, and no two are."""

    def __init__(self, size: int, seed: int, variety: int = 256) -> None:
        draw = random.Random(seed)
        self._parts = [_split(size, draw) for _ in range(variety)]

    def __getitem__(self, number: int) -> bytes:
        before, after = self._parts[number % len(self._parts)]
        return b"%s%016d%s" % (before, number, after)


def _split(size: int, draw: random.Random) -> tuple[bytes, bytes]:
    frame = {"kind": "note", "id": "0" * STAMP, "tags": draw.sample(lexicon(7)[0], 4), "limit": 20, "text": ""}
    frame["text"] = prose(draw, size - len(json.dumps(frame)))
    before, after = json.dumps(frame).split("0" * STAMP, 1)
    return before.encode(), after.encode()


def turns(run: int, count: int, sizes: tuple[int, int] = (600, 900)) -> Iterator[tuple[bytes, bytes]]:
    """A conversation: request and answer of each turn, in the shape of chat completions. Every request repeats the history."""
    draw = random.Random(run)
    messages = [{"role": "system", "content": prose(draw, 3000)}]
    for turn in range(count):
        messages.append({"role": "user", "content": prose(draw, draw.randint(*sizes))})
        answer = {"role": "assistant", "content": prose(draw, draw.randint(*sizes))}
        yield _asked(messages), _answered(run, turn, answer)
        messages.append(answer)


def _asked(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "gpt-4.1-mini", "messages": messages, "temperature": 0.2}).encode()


def _answered(run: int, turn: int, answer: dict[str, str]) -> bytes:
    return json.dumps(
        {
            "id": f"chatcmpl-{run:08d}{turn:04d}",
            "object": "chat.completion",
            "created": 1790000000 + turn,
            "model": "gpt-4.1-mini-2026-04-14",
            "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 900 + turn, "completion_tokens": 180, "total_tokens": 1080 + turn},
        }
    ).encode()
