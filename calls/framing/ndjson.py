"""Read JSON values, one per line (Ollama, Cohere's first API, Elasticsearch)."""

import re
from typing import Final

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.framing import Message

_LABELS: Final = re.compile(r"ndjson|stream\+json|jsonl|json-lines|x-json-stream")


def matches(head: bytes, media: str, *, is_whole: bool) -> bool | None:
    """Match a complete value on the first line with more after it; a single line only if the media type says so."""
    is_labelled = _LABELS.search(media) is not None
    if head[:1] != b"{":
        return False
    first, end, rest = head.partition(b"\n")
    if not end or not rest.strip():
        return is_labelled if is_labelled or is_whole else None
    return is_labelled or _is_json(first)


def _is_json(line: bytes) -> bool:
    try:
        parse_json_leniently(line)
    except InvalidJson:
        return False
    return True


class Decoder:
    """Decodes lines. Empty lines are skipped."""

    is_broken: Final = False
    mark: bytes = b"\n"
    """The byte that ends a value."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """Feed more bytes; return the lines that they complete."""
        *lines, tail = data.split(self.mark)
        if lines:
            lines[0] = b"".join((*self._tail, lines[0]))
            self._tail = []
        self._tail.append(tail)
        return [_line_message(line) for line in lines if line.strip()]

    def finish(self) -> list[Message]:
        """Return the last line, which may lack a line end."""
        line, self._tail = b"".join(self._tail), []
        return [_line_message(line)] if line.strip() else []


def _line_message(line: bytes) -> Message:
    return Message("", line.strip().decode("utf-8", "replace"))
