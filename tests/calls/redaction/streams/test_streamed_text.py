"""A secret that is divided over the messages of a stream is replaced in each of them, in every dialect."""

import base64
import gc
import gzip
import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calls.framing import eventstream
from calls.model import Body, Chunk
from calls.placeholder import PATTERN
from calls.redaction.redactor import Redactor
from calls.redaction.streams.message_bounds import MAX_MESSAGE
from calls.redaction.streams.streamed_text import MAX_WAITING
from tests.calls.planted import PlantedStream, Stream, body_of, places, plant_secret, stream_of
from tests.calls.secrets import KEPT, KEY, TOKENS
from tests.calls.strategies import pieces
from tests.calls.test_conformance import CASES, MEDIA, STREAMED
from tests.support.examples import many_examples

REDACTOR = Redactor(key=KEY)
WINDOW = 10
"""The number of characters of a secret that must not occur anywhere."""

SSE = "text/event-stream"


STREAMS = [
    file
    for _, file in CASES
    if file.suffix in STREAMED and (stream := stream_of(file)) and list(places(stream.messages))
]


def redact_body(body: bytes, media: str) -> bytes:
    return REDACTOR.redact_body(body, media)[0]


def redact_pieces(parts: list[bytes], media: str | None, encoding: str | None = None) -> list[bytes]:
    """Redact the pieces of a body."""
    body = REDACTOR.new_body_redactor(media, encoding)
    out: list[bytes] = []
    for at, part in enumerate(parts):
        out += [part] if body.try_pass(part) else [piece.data for piece in body.feed(part, at)]
    out += [piece.data for piece in body.finish()]
    assert encoding or [len(part) for part in parts] == [len(part) for part in out]
    return out


def said_by(body: bytes) -> Body:
    """Redact the messages of a WebSocket, one per line."""
    return _stored_body(body_of(body))


def _stored_body(body: Body) -> Body:
    work = REDACTOR.new_message_redactor()
    fed = [one for c in body.chunks for one in work.feed(body.data[c.offset :][: c.size], c.at, c.kind)]
    data, chunks = b"", []
    for one in [*fed, *work.finish()]:
        chunks.append(Chunk(one.at, len(data), len(one.data), one.kind))
        data += one.data
    assert [chunk.at for chunk in chunks] == [chunk.at for chunk in body.chunks]
    return Body(data=data, chunks=tuple(chunks), size=len(data))


def shows(secret: str, text: str) -> bool:
    return any(secret[at : at + WINDOW] in text for at in range(len(secret) - WINDOW + 1))


def join_secret_pieces(
    stream: Stream, one: PlantedStream, number: int, path: tuple[str | int, ...], file: Path, new: bytes
) -> str:
    """Join the pieces that contained the secret."""
    again = stream_of(file, new)
    assert again is not None, "the framing is broken"
    assert len(again.messages) == len(stream.messages) - 1 + len(one.pieces)
    found = ""
    for message in again.messages[number : number + len(one.pieces)]:
        value: Any = message
        for step in path:
            value = value[step]
        found += value
    return found


@settings(max_examples=many_examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_secret_that_a_model_spells_out_is_in_no_record(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(STREAMS))
    stream = stream_of(file)
    assert stream is not None
    number, path = data.draw(st.sampled_from(list(places(stream.messages))))
    seed = data.draw(st.integers(0, 99))
    one = plant_secret(stream, number, path, data.draw(st.sampled_from(TOKENS)), random.Random(seed))
    media = MEDIA[file.suffix]
    if file.suffix == ".messages":
        kept = said_by(one.body)
        new = b"\n".join(kept.data[c.offset :][: c.size] for c in kept.chunks) + b"\n"
        assert said_by(new).data == kept.data
    else:
        new = b"".join(redact_pieces(data.draw(pieces(one.body)), media))
        assert new == redact_body(one.body, media), "how the network cut it matters"
        assert REDACTOR.redact_body(new, media) == (new, 0, False)
    placeholder = (
        join_secret_pieces(stream, one, number, path, file, new).removeprefix(" the key is ").removesuffix(" ok ")
    )
    assert re.fullmatch(KEPT + PATTERN, placeholder)
    assert len(placeholder) == len(one.secret)
    # Nothing else has changed, and the framing is that of its writer.
    assert new == plant_secret(stream, number, path, placeholder, random.Random(seed)).body


GHP = "ghp_aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3d"


def chat(*texts: str, index: int = 0) -> list[bytes]:
    """Make the events of a chat, one for each text."""
    return [
        b"data: %s\n\n" % json.dumps({"choices": [{"index": index, "delta": {"content": text}}]}).encode()
        for text in texts
    ]


def cut(text: str, size: int = 4) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def text_of(body: bytes, index: int = 0) -> str:
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(choice["delta"]["content"] for choice in choices if choice["index"] == index)


ARGUMENTS = (
    '{"password": "hunter-22"}',
    '{"password": "h\\"nt\\u00e9"}',
    '{"api_key": ["hunter-22Xy7q", "hunter-33Zw8p"]}',
    '{"env": [{"name": "API_KEY", "value": "hunter-22"}]}',
    '{"headers": {"Authorization": "Bearer hunter-22-and-33"}}',
    '{"cmd": "export API_KEY=hunter-22-and-33"}',
)


def test_a_stream_that_is_over_leaves_no_garbage_to_be_collected() -> None:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        body = REDACTOR.new_body_redactor(SSE)
        for event in chat(*cut(f"the key is {GHP} ok")):
            body.feed(event, 1)
        body.finish()
        del body
        assert gc.collect() == 0
    finally:
        if was_enabled:
            gc.enable()


@pytest.mark.parametrize("arguments", ARGUMENTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_arguments_in_pieces_stay_json_and_lose_the_value_of_a_secret(arguments: str, data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(arguments) - 1), max_size=6))
    bounds = [0, *sorted(cuts), len(arguments)]
    body = b"".join(chat(*(arguments[low:high] for low, high in pairwise(bounds))))

    new = redact_body(body, SSE)

    assert not re.search("hunter-|nt.u00", text_of(new))
    assert text_of(new) == text_of(redact_body(chat(arguments)[0], SSE)), "how the model cuts it matters"
    assert json.loads(text_of(new))
    assert len(new) == len(body)
    assert REDACTOR.redact_body(new, SSE) == (new, 0, False)


def test_two_answers_at_once_are_two_texts() -> None:
    other = GHP[:4] + GHP[:3:-1]
    body = b"".join(b"".join(both) for both in zip(chat(*cut(GHP)), chat(*cut(other), index=1), strict=True))

    new = redact_body(body, SSE)

    assert re.fullmatch(PATTERN, text_of(new))
    assert re.fullmatch(PATTERN, text_of(new, 1))
    assert text_of(new) != text_of(new, 1)


def test_a_text_that_is_said_whole_at_the_end_has_the_same_placeholder() -> None:
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": part} for part in cut(f"It is {GHP}.")]
    done = {"type": "response.output_text.done", "output_index": 0, "text": f"It is {GHP}."}
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in [*deltas, done])

    *pieces_, whole = (json.loads(line[6:]) for line in redact_body(body, SSE).splitlines() if line)

    assert "".join(piece["delta"] for piece in pieces_) == whole["text"]
    assert not shows(GHP, whole["text"])


@pytest.mark.parametrize(
    ("media", "frame"),
    [
        (SSE, b"event: output\ndata: %s\n\n"),
        (SSE, b"data:%s\r\n\r\n"),
        (SSE, b'data: "%s"\n\n'),
        (SSE, b"data: %s\r\r"),
        ("application/x-ndjson", b'{"chunk": "%s"}\n'),
        ("application/json", b'{"chunk": "%s", "n": [1, 2]}\n'),
        (None, b'{"chunk": "%s", "provider": "unknown"}\n'),
        (None, b'{"text": "%s"}\0'),
    ],
)
def test_an_api_that_nobody_knows_is_read_as_well(media: str | None, frame: bytes) -> None:
    body = b"".join(frame % part.encode() for part in ["Sure: ", *cut(GHP), ", ok"])

    new = redact_body(body, media or "")

    start, end = frame.split(b"%s")
    parts = [part.removeprefix(start) for part in new.split(end)]
    assert re.fullmatch(f"Sure: {PATTERN}, ok", b"".join(parts).decode())
    assert b"".join(redact_pieces([new[at : at + 7] for at in range(0, len(new), 7)], media)) == new


def test_a_key_of_several_lines_is_replaced_between_the_fields_of_events() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", *["aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA" * 2] * 4, "-----END PRIVATE KEY-----"]
    body = b"".join(b"data: %s\ndata: \n\n" % line.encode() for line in lines)

    new = redact_body(body, SSE)

    assert new.count(b"data: ") == body.count(b"data: ")
    assert not shows("aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA", new.decode())
    assert redact_body(new, SSE) == new


@pytest.mark.parametrize("size", [5, 40, 1000])
def test_what_an_event_stream_carries_in_parts_is_read_through_them(size: int) -> None:
    carried = b"".join(chat("the key: ", *cut(GHP), " ok"))
    headers: dict[str, Any] = {":event-type": "PayloadPart", ":message-type": "event"}
    parts = [carried[at : at + size] for at in range(0, len(carried), size)]
    body = b"".join(eventstream.encode_frame(headers, part) for part in parts)

    new = redact_body(body, MEDIA[".eventstream"])

    decoder = eventstream.Decoder()
    found = b"".join(frame.payload for frame in decoder.feed_frames(new))
    assert not decoder.is_broken
    assert re.fullmatch(f"the key: {PATTERN} ok", text_of(found))
    assert REDACTOR.redact_body(new, MEDIA[".eventstream"]) == (new, 0, False)


def test_a_compressed_stream_is_opened_for_it() -> None:
    body = gzip.compress(b"".join(chat("the key: ", *cut(GHP), " ok")))

    new, count, reencoded = REDACTOR.redact_body(body, SSE, "gzip")

    assert (count, reencoded) == (1, True)
    assert re.fullmatch(f"the key: {PATTERN} ok", text_of(gzip.decompress(new)))


def test_a_stream_that_breaks_off_within_a_message_is_read_to_its_last_byte() -> None:
    body = b"".join(chat("the key: ", *cut(GHP, 12)))
    for end in range(body.index(GHP[24:36].encode()) + 10, len(body)):
        assert not shows(GHP, text_or_bytes(redact_body(body[:end], SSE)))


def text_or_bytes(body: bytes) -> str:
    return "".join(re.findall(r'content": "([^"]*)', body.decode()))


def test_only_what_may_go_on_as_a_secret_waits() -> None:
    body = REDACTOR.new_body_redactor(SSE)
    first, second, third, fourth = chat("all of it is plain", " gh", "p_no", " as many")

    assert [piece.at for piece in body.feed(first, 1)] == [1]
    assert body.feed(second, 2) == []
    assert body.feed(third, 3) == []
    assert [piece.at for piece in body.feed(fourth, 4)] == [2, 3, 4]


def test_what_waits_is_bounded_however_long_it_takes() -> None:
    body = REDACTOR.new_body_redactor(SSE)
    waiting = 0
    for at, event in enumerate([*chat("it begins with s"), *[b": ping, and more of it\n\n"] * 20_000]):
        waiting += len(event) - sum(piece.size for piece in body.feed(event, at))
        assert waiting <= MAX_WAITING + 1000
    assert waiting == 0


@pytest.mark.parametrize("kind", ["sse", "lines", "array"])
def test_a_message_of_any_size_is_passed_and_what_follows_it_is_read(kind: str) -> None:
    def stream_message(text: str) -> bytes:
        value = json.dumps({"candidates": [{"content": {"parts": [{"text": text}]}}]}).encode()
        return {"sse": b"data: %s\n\n", "lines": b"%s\n", "array": b",%s"}[kind] % value

    long = stream_message("word " * MAX_MESSAGE)
    body = b"[" * (kind == "array") + b"".join(
        [stream_message("a"), long, *map(stream_message, ["the key: ", *cut(GHP)])]
    )
    media = {"sse": SSE, "lines": "application/x-ndjson", "array": "application/json"}[kind]
    work = REDACTOR.new_body_redactor(media)
    waiting = 0
    for at in range(0, len(body), 8192):
        fed = body[at : at + 8192]
        waiting += len(fed) - sum(piece.size for piece in work.feed(fed, at))
        assert waiting <= MAX_MESSAGE + MAX_WAITING + 2 * 8192

    new = redact_body(body, media)

    assert new.startswith(body[: len(long)])
    assert not shows(GHP, "".join(re.findall(r'text": "([^"]*)', new.decode())))
    assert b"".join(redact_pieces([body[at : at + 8192] for at in range(0, len(body), 8192)], media)) == new


def test_a_document_is_no_stream() -> None:
    for body in (
        json.dumps([{"title": part} for part in ["password:", "correct0horse"]]).encode(),
        json.dumps({"title": "the password: ", "more": ["hunter2", "x" * 9]}, indent=1).encode(),
    ):
        assert redact_body(body, "application/json") == body


def test_sound_and_ids_are_no_text() -> None:
    ids = [{"type": "x.delta", "id": part, "item_id": part, "delta": "a"} for part in cut(GHP)]
    sound = [{"type": "response.output_audio.delta", "delta": part} for part in cut(GHP)]
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in [*ids, *sound])

    assert redact_body(body, SSE) == body


def test_a_member_that_says_the_same_in_each_message_is_no_piece() -> None:
    events = [{"provider": "sk-aB3dE", "text": part} for part in ["some", " words", " and", " more"]]
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)

    assert redact_body(body, SSE) == body


@pytest.mark.parametrize("split", [1, 3, 7])
def test_what_a_model_of_bedrock_spells_out_in_base64_is_replaced_in_it(split: int) -> None:
    def frame(text: str) -> bytes:
        inner = base64.b64encode(json.dumps({"outputText": text, "index": 0}).encode()).decode()
        headers = {":event-type": "chunk", ":message-type": "event"}
        return eventstream.encode_frame(headers, json.dumps({"bytes": inner, "p": "abc"}).encode())

    body = b"".join(map(frame, ["the key: ", *cut(GHP, split), " ok"]))

    new = redact_body(body, MEDIA[".eventstream"])

    decoder = eventstream.Decoder()
    found = [json.loads(base64.b64decode(json.loads(one.payload)["bytes"])) for one in decoder.feed_frames(new)]
    assert not decoder.is_broken
    assert re.fullmatch(f"the key: {PATTERN} ok", "".join(one["outputText"] for one in found))


@pytest.mark.parametrize("at", range(1, 25, 2))
def test_arguments_in_base64_stay_json(at: int) -> None:
    arguments = '{"password": "hunter-2-abc"}'

    def frame(text: str) -> bytes:
        inner = {"type": "content_block_delta", "index": 0, "delta": {"partial_json": text}}
        payload = json.dumps({"bytes": base64.b64encode(json.dumps(inner).encode()).decode()}).encode()
        return eventstream.encode_frame({":event-type": "chunk", ":message-type": "event"}, payload)

    body = frame(arguments[:at]) + frame(arguments[at:])

    new = redact_body(body, MEDIA[".eventstream"])

    frames = eventstream.Decoder().feed_frames(new)
    found = [json.loads(base64.b64decode(json.loads(one.payload)["bytes"]))["delta"] for one in frames]
    kept = json.loads("".join(one["partial_json"] for one in found))
    assert re.fullmatch(rf"{PATTERN}|\*+", kept["password"])
    assert REDACTOR.redact_body(new, MEDIA[".eventstream"]) == (new, 0, False)
