"""What every dialect owes: the same answer however the network cuts it, and no bytes that surprise it.

The dialects come from the table. One without a capture in `captures/NAME/` fails.
"""

import base64
import dataclasses
import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calls.codec.json import dumps, parse
from calls.dialects import AnswerSummary, Assembly, Dialect
from calls.dialects.table import BY_NAME, DIALECTS
from calls.framing import eventstream, websocket
from calls.model import Json, header
from calls.route import route_of
from store.active_profiles import shipped
from tests.calls.frames import framed
from tests.calls.recorded import exchange
from tests.calls.sockets import said
from tests.calls.strategies import json_values, pieces
from tests.support.corpus import cassettes

CAPTURES = Path(__file__).parent / "captures"
MEDIA = {
    ".sse": "text/event-stream; charset=utf-8",
    ".array": "application/json; charset=utf-8",
    ".ndjson": "application/x-ndjson",
    ".eventstream": "application/vnd.amazon.eventstream",
    ".messages": websocket.MEDIA,
    ".json": "application/json",
    ".txt": "text/plain",
}
STREAMED = {".sse", ".array", ".ndjson", ".eventstream", ".messages"}
NEVER_STREAMED = {"openai_embeddings", "vectors", "rerank"}
"""Dialects whose answers always come whole."""


def shapes(file: Path) -> list[Json]:
    """The messages of a capture, as a mould for nonsense."""
    if file.suffix in (".eventstream", ".messages"):
        return []
    lines = [line.removeprefix("data: ") for line in file.read_text().splitlines() if line.startswith(("data: {", "{"))]
    return [parse(line.encode()) for line in lines if line.endswith("}")]


def content(file: Path) -> bytes:
    """The body of a capture. A WebSocket's messages stand in it one a line."""
    if file.suffix != ".messages":
        return file.read_bytes()
    return websocket.framed(said(*file.read_bytes().splitlines()))


CASES = [
    (dialect, file)
    for dialect in DIALECTS
    for file in sorted((CAPTURES / dialect.NAME).glob("*"))
    if file.suffix in MEDIA
]


def params(cases: list[tuple[Dialect, Path]]) -> list[ParameterSet]:
    return [pytest.param(dialect, file, id=f"{dialect.NAME}-{file.stem}") for dialect, file in cases]


FILES = params(CASES)
"""Every capture with its dialect."""

SHAPED = params([case for case in CASES if case[0].NAME != "generic" and case[1].suffix not in (".txt", ".messages")])
"""Those of a known shape, which can be told without a label."""

STREAMS = params(
    [case for case in CASES if case[0].NAME != "generic" and case[1].suffix in (".sse", ".ndjson") and shapes(case[1])]
)


def assembled(dialect: Dialect, media: str, *data: bytes) -> Assembly:
    assembly = dialect.assemble(media)
    for piece in data:
        assembly.feed(piece)
    assembly.finish()
    return assembly


def outcome(dialect: Dialect, media: str, *data: bytes) -> dict[str, Any]:
    """All that a dialect makes of a body, as plain JSON."""
    assembly = assembled(dialect, media, *data)
    answer = assembly.answer
    read = {
        "answer": answer,
        "complete": assembly.complete,
        "streamed": assembly.streamed,
        "told": dataclasses.asdict(dialect.told(answer)),
    }
    return json.loads(dumps(read))  # type: ignore[no-any-return] # it is the object just written


SAYING_NOTHING: dict[str, Any] = json.loads(dumps(dataclasses.asdict(AnswerSummary())))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
def test_a_dialect_has_a_captured_stream_and_a_captured_body(dialect: Dialect) -> None:
    suffixes = {file.suffix for file in (CAPTURES / dialect.NAME).glob("*")}
    assert suffixes & STREAMED or dialect.NAME in NEVER_STREAMED
    assert ".json" in suffixes


@pytest.mark.parametrize(("dialect", "file"), FILES)
def test_a_capture_becomes_what_is_expected_of_it(dialect: Dialect, file: Path) -> None:
    expected = json.loads(file.with_suffix(".expected").read_text())
    expected["told"] = SAYING_NOTHING | expected["told"]
    assert outcome(dialect, MEDIA[file.suffix], content(file)) == expected


@pytest.mark.parametrize(("dialect", "file"), FILES)
@settings(max_examples=25)
@given(data=st.data())
def test_chunking_does_not_matter(dialect: Dialect, file: Path, data: st.DataObject) -> None:
    media, body = MEDIA[file.suffix], content(file)
    assert outcome(dialect, media, *data.draw(pieces(body))) == outcome(dialect, media, body)


@pytest.mark.parametrize(("dialect", "file"), FILES)
def test_a_body_cut_anywhere_is_never_an_exception_and_never_whole_too_early(dialect: Dialect, file: Path) -> None:
    media, body = MEDIA[file.suffix], content(file)
    whole = outcome(dialect, media, body)
    for end in range(len(body.rstrip()) - 14):  # the end mark itself is shorter
        cut = outcome(dialect, media, body[:end])
        assert cut["complete"] is not True or whole["complete"] is None, body[:end]


@pytest.mark.parametrize(("dialect", "file"), SHAPED)
def test_the_media_type_may_be_wrong(dialect: Dialect, file: Path) -> None:
    body = file.read_bytes()
    right = outcome(dialect, MEDIA[file.suffix], body)
    assert outcome(dialect, "application/octet-stream", body) == right
    assert outcome(dialect, "text/event-stream", body) == right


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
@pytest.mark.parametrize("media", MEDIA.values())
@given(body=st.binary(max_size=60))
def test_no_bytes_surprise_a_dialect(dialect: Dialect, media: str, body: bytes) -> None:
    outcome(dialect, media, body)
    outcome(dialect, media, b"data: " + body + b"\n\n")


@st.composite
def bent(draw: st.DrawFn, value: Json) -> Json:
    """The value with some part of it replaced by anything at all."""
    if draw(st.integers(0, 3)) == 0:
        return draw(json_values)
    match value:
        case dict() if value:
            name = draw(st.sampled_from(sorted(value)))
            return {**value, name: draw(bent(value[name]))}
        case list() if value:
            place = draw(st.integers(0, len(value) - 1))
            return [*value[:place], draw(bent(value[place])), *value[place + 1 :]]
        case _:
            return draw(json_values)


@pytest.mark.parametrize(("dialect", "file"), STREAMS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_shape_surprises_a_dialect(dialect: Dialect, file: Path, data: st.DataObject) -> None:
    messages = shapes(file)
    place = data.draw(st.integers(0, len(messages) - 1))
    messages[place] = data.draw(bent(messages[place]))
    begin, end = (b"", b"\n") if file.suffix == ".ndjson" else (b"data: ", b"\n\n")
    outcome(dialect, MEDIA[file.suffix], *(begin + dumps(message) + end for message in messages))


@pytest.mark.parametrize("carrier", ["bedrock_converse", "bedrock_invoke"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_shape_surprises_a_carrier(carrier: str, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(sorted((CAPTURES / carrier).glob("*.eventstream"))))
    events = [(frame.message.event, parse(frame.payload)) for frame in eventstream.Decoder().frames(file.read_bytes())]
    place = data.draw(st.integers(0, len(events) - 1))
    name, value = events[place]
    events[place] = (name, data.draw(bent(value)))
    if name == "chunk":
        inner = parse(base64.b64decode(value["bytes"]))  # type: ignore[index,arg-type,call-overload] # as Bedrock sends it
        events[place] = (name, {"bytes": base64.b64encode(dumps(data.draw(bent(inner)))).decode()})
    outcome(BY_NAME[carrier], MEDIA[file.suffix], *(framed(event, said) for event, said in events))


@pytest.mark.parametrize(
    ("dialect", "file"), params([case for case in CASES if case[1].suffix == ".messages" and case[0].NAME != "generic"])
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_message_surprises_a_dialect(dialect: Dialect, file: Path, data: st.DataObject) -> None:
    messages = [parse(line) for line in file.read_bytes().splitlines()]
    place = data.draw(st.integers(0, len(messages) - 1))
    messages[place] = data.draw(bent(messages[place]))
    outcome(dialect, websocket.MEDIA, websocket.framed(said(*map(dumps, messages))))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
@given(body=json_values)
def test_no_body_surprises_a_dialect(dialect: Dialect, body: Json) -> None:
    dialect.asked(body)
    dialect.told(body)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
def test_a_dialect_has_a_profile_of_its_own(dialect: Dialect) -> None:
    names = {name for profile in shipped().profiles for name in profile.match.dialect}
    assert dialect.NAME in names or dialect.NAME == "generic"


@lru_cache(maxsize=1)
def streams() -> dict[str, list[tuple[str, bytes]]]:
    """The media type and the bytes of every streamed answer of the corpus, by dialect."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for one in (exchange(recorded) for cassette in cassettes() for recorded in cassette.exchanges):
        assert one.response is not None
        name = route_of(one.request).dialect
        media = (header(one.response.headers, "content-type") or "").lower()
        body = one.response.body.data
        body = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
        if assembled(BY_NAME[name], media, body).streamed:
            found.setdefault(name, []).append((media, body))
    return found


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_chunking_does_not_matter_for_recorded_streams(dialect: Dialect, data: st.DataObject) -> None:
    found = streams().get(dialect.NAME)
    if not found:
        pytest.skip(f"the corpus has no streams of {dialect.NAME}")
    media, body = data.draw(st.sampled_from(found))
    assert outcome(dialect, media, *data.draw(pieces(body))) == outcome(dialect, media, body)


def test_a_long_stream_is_joined_whole() -> None:
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
    assembly = assembled(BY_NAME["openai_chat"], MEDIA[".sse"], *[delta] * 20_000)
    answer: Any = assembly.answer
    assert answer["choices"][0]["message"]["content"] == "word " * 20_000
