"""Secrets planted in the streamed texts of captured answers, spelled out over several messages as a model spells them."""

import base64
import json
import random
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from calls.dialects.table import DIALECTS
from calls.framing import eventstream
from calls.model import Body
from tests.calls.sockets import messages_body

type Messages = list[Any]


class PlantedStream(NamedTuple):
    """A stream in which a secret is spelled out."""

    body: bytes
    secret: str
    pieces: list[str]
    """What stands in the messages, in their order; together they are the text with the secret in it."""


class Stream(NamedTuple):
    """The messages of a capture, and how they are written again."""

    messages: Messages
    write: Callable[[Messages], bytes]


def stream_of(file: Path | str, data: bytes | None = None) -> Stream | None:
    """The messages of a captured stream, or of data of a kind (`.sse`); None where they are no JSON objects."""
    suffix = file if isinstance(file, str) else file.suffix
    data = Path(file).read_bytes() if data is None else data
    try:
        match suffix:
            case ".sse":
                return _sse(data.decode())
            case ".ndjson" | ".messages":
                lines = [line for line in data.splitlines() if _is_object(line)]
                return Stream([json.loads(line) for line in lines], _lines) if lines else None
            case ".array":
                return Stream(json.loads(data), lambda values: json.dumps(values, indent=1).encode())
            case ".eventstream":
                return _frames(data)
            case _:
                return None
    except ValueError:
        return None


def body_of(data: bytes) -> Body:
    """The messages of a WebSocket, which are written one a line."""
    return messages_body(*data.splitlines())


def places(messages: Messages) -> Iterator[tuple[int, tuple[str | int, ...]]]:
    """The strings of the messages that grow, piece by piece: each message by its number, and the path in it."""
    for number, message in enumerate(messages):
        if _NEVER_TWICE.search(json.dumps(message.get("value", message) if isinstance(message, dict) else message)):
            continue
        for path, value in _strings(message, ()):
            names = [step for step in path if isinstance(step, str)]
            grows = path == ("value",) or (names and names[-1] in GROWING and not set(names) & NOT_GROWING)
            if grows and isinstance(value, str):
                yield number, path


_DECLARED = {
    path.rpartition("/")[2] for dialect in DIALECTS if dialect.answer_paths for path in dialect.answer_paths.texts
}
GROWING = _DECLARED | {
    *(
        "content",
        "text",
        "delta",
        "partial_json",
        "arguments",
        "thinking",
        "reasoning",
        "reasoning_content",
        "completion",
    ),
    *("response", "generation", "outputText", "generated_text", "transcript", "stringValue", "tool_plan", "value"),
    *("textDelta", "data", "input"),
}
"""The names of members whose texts come in pieces: those that dialects declare, and others."""

_NEVER_TWICE = re.compile(r'"(?:response\.done|response\.completed|[a-z_.]*audio\.delta)"')
NOT_GROWING = frozenset(("top_logprobs", "logprobs", "annotations", "audio", "inlineData"))


def plant_secret(
    stream: Stream, number: int, path: tuple[str | int, ...], secret: str, rnd: random.Random
) -> PlantedStream:
    """The stream with copies of one message in the place of it, which say ` the key is SECRET ok`, a few letters at a time."""
    cuts = sorted(rnd.sample(range(1, len(secret)), rnd.randint(1, min(9, len(secret) - 1))))
    parts = [secret[low:high] for low, high in zip([0, *cuts], [*cuts, len(secret)], strict=True)]
    parts = [" the key is ", *parts, " ok "]
    copies = []
    for part in parts:
        copy = deepcopy(stream.messages[number])
        holder: Any = copy
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = part
        copies.append(copy)
    messages = [*stream.messages[:number], *copies, *stream.messages[number + 1 :]]
    return PlantedStream(stream.write(messages), secret, parts)


def _strings(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from _strings(inner, (*path, name))
        case list():
            for place, inner in enumerate(value):
                yield from _strings(inner, (*path, place))
        case _:
            yield path, value


def _inner(value: Any) -> Any:
    """The message that a message of Bedrock carries in base64."""
    try:
        return json.loads(base64.b64decode(value["bytes"]))
    except (KeyError, ValueError):
        return None


def _is_object(line: str | bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _lines(values: Messages) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def _sse(text: str) -> Stream | None:
    blocks = _EVENT_END.split(text)
    events = [(event, end) for event, end in zip(blocks[::2], [*blocks[1::2], "\n\n"], strict=True) if event.strip()]
    found = [_DATA.search(event) for event, _ in events]
    if not any(one and _is_json(one.group(1)) for one in found):
        return None
    messages: Messages = []
    for (event, end), one in zip(events, found, strict=True):
        value = json.loads(one.group(1)) if one and _is_json(one.group(1)) else None
        messages.append({"sse": event, "end": end, "was": one.group(1) if one else None, "value": value})

    def write(values: Messages) -> bytes:
        out = b""
        for one in values:
            event = one["sse"]
            if one["value"] is not None:
                event = event.replace(one["was"], json.dumps(one["value"]))
            out += event.encode() + one["end"].encode()
        return out

    return Stream(messages, write)


_EVENT_END = re.compile(r"((?:\r\n){2,}|\n{2,})")
_DATA = re.compile(r"(?m)^data: ?([\{\"].*[\}\"])\r?$")


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | str)
    except ValueError:
        return False


def _frames(data: bytes) -> Stream | None:
    frames = eventstream.Decoder().feed_frames(data)
    messages: Messages = []
    for frame in frames:
        value = json.loads(frame.payload)
        inner = _inner(value)
        messages.append({"headers": dict(frame.headers), "value": value, "inner": inner})

    def write(values: Messages) -> bytes:
        out = b""
        for one in values:
            value = one["value"]
            if one["inner"] is not None:
                value = {**value, "bytes": base64.b64encode(json.dumps(one["inner"]).encode()).decode()}
            out += eventstream.encode_frame(one["headers"], json.dumps(value).encode())
        return out

    return Stream(messages, write) if messages else None
