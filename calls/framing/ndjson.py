"""Read JSON values, one a line (Ollama, Cohere's first API, Elasticsearch)."""

import re
from typing import Final

from calls.codec.json import NotLossless, lenient
from calls.framing import Message

_LABELS: Final = re.compile(r"ndjson|stream\+json|jsonl|json-lines|x-json-stream")


def begins(head: bytes, media: str, *, ended: bool) -> bool | None:
    """A whole value on the first line, and more after it. One line alone is a stream only where the label says so."""
    labelled = _LABELS.search(media) is not None
    if head[:1] != b"{":
        return False
    first, end, rest = head.partition(b"\n")
    if not end or not rest.strip():
        return labelled if labelled or ended else None
    return labelled or _is_json(first)


def _is_json(line: bytes) -> bool:
    try:
        lenient(line)
    except NotLossless:
        return False
    return True


class Decoder:
    """Bytes in, lines out. Empty ones are nothing."""

    broken: Final = False
    mark: bytes = b"\n"
    """What closes a value."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes; give the lines that they complete."""
        *lines, tail = data.split(self.mark)
        if lines:
            lines[0] = b"".join((*self._tail, lines[0]))
            self._tail = []
        self._tail.append(tail)
        return [_message(line) for line in lines if line.strip()]

    def finish(self) -> list[Message]:
        """Give the last line, which nothing need close."""
        line, self._tail = b"".join(self._tail), []
        return [_message(line)] if line.strip() else []


def _message(line: bytes) -> Message:
    return Message("", line.strip().decode("utf-8", "replace"))
