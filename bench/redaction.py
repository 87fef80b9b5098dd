"""Measure the cost of the search for secrets in the events of a stream: `python -m bench.redaction`.

The text of a model, a word or a part of one in each event, in the formats of OpenAI and Anthropic: once with new words,
and once with words that the search remembers. Prints the CPU time of one thread for each event, and the number of
events that had to wait for the next one.
"""

import json
import random
import re
import time
from typing import Final

from bench.sample_bodies import prose
from calls.redaction.redactor import Redactor

COUNT: Final = 20_000
_PIECE: Final = re.compile(r" ?\S{1,6}")


def openai(text: str) -> bytes:
    """Return a chunk of a chat completion."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def anthropic(text: str) -> bytes:
    """Return a delta of a content block."""
    event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    return f"event: content_block_delta\ndata: {json.dumps(event)}\n\n".encode()


def measure(redactor: Redactor, events: list[bytes]) -> str:
    """Return the figures of one stream."""
    body = redactor.new_body_redactor("text/event-stream")
    waited = 0
    began = time.thread_time()
    for number, event in enumerate(events):
        if not body.try_pass(event):
            waited += not body.feed(event, number)
    body.finish()
    used = time.thread_time() - began
    return f"{used / len(events) * 1e6:5.1f} µs an event, {waited / len(events):4.0%} waited"


def main() -> None:
    """Measure each format on new words and on the same words again."""
    redactor = Redactor(key=b"k" * 32)
    for number, form in enumerate((openai, anthropic)):
        pieces = _PIECE.findall(prose(random.Random(number), COUNT * 8))[:COUNT]
        events = [form(piece) for piece in pieces]
        for when in ("first", "again", "again"):
            print(f"{form.__name__:9} {when}: {measure(redactor, events)}")


if __name__ == "__main__":
    main()
