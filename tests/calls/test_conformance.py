"""What every dialect must have and do: all its parts, the same answer however the network divides it, no bytes that make it raise.

The dialects come from the table. A part that is missing is reported by the names of the dialect and of the part.
"""

import base64
import dataclasses
import gzip
import json
import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import calls.profiles
from calls.codec.json import dumps, parse_json
from calls.codec.lenient_json import as_object
from calls.dialects.dialect import AnswerSummary, Assembly, Dialect
from calls.dialects.parts.answer_forms import AnswerForm, never_streamed
from calls.dialects.table import BY_NAME, DIALECTS
from calls.framing import eventstream, websocket
from calls.model import Json, ToolCall, header
from calls.route import route_request
from replay.overrides.dialect_paths import find_texts
from store.active_profiles import load_profiles
from tests.calls.composed_requests import RESULTS, TURNS, USAGE, RequestForm, composed_parts
from tests.calls.frames import json_frame
from tests.calls.recorded import exchange
from tests.calls.sockets import messages_body
from tests.calls.strategies import json_values, pieces
from tests.support.corpus import cassettes
from tests.support.examples import few_examples

CAPTURES = Path(__file__).parent / "captures"
PROFILES = Path(calls.profiles.__path__[0])
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
NEVER_STREAMED = {dialect.name for dialect in DIALECTS if dialect.answer_form is never_streamed}
"""Dialects whose answers always come whole."""

NOT_EDITED = {
    *("a2a", "ai_gateway", "anthropic_sessions", "bedrock_agent", "bedrock_others", "dashscope", "discovery"),
    *(
        "gemini_interactions",
        "generic",
        "mcp",
        "mistral_conversations",
        "openai_agents",
        "openai_assistants",
        "openai_rest",
    ),
    *("replicate", "sagemaker", "searches", "services", "text_generation", "watsonx"),
}
"""Dialects whose answers have texts that no override edits: nobody has declared their paths yet, or a tool wrote them."""


def shapes(file: Path) -> list[Json]:
    """The messages of a capture, from which nonsense is made."""
    if file.suffix in (".eventstream", ".messages"):
        return []
    lines = [line.removeprefix("data: ") for line in file.read_text().splitlines() if line.startswith(("data: {", "{"))]
    return [parse_json(line.encode()) for line in lines if line.endswith("}")]


def content(file: Path) -> bytes:
    """The body of a capture, which has a WebSocket's messages one per line."""
    if file.suffix != ".messages":
        return file.read_bytes()
    return websocket.frame_messages(messages_body(*file.read_bytes().splitlines()))


CASES = [
    (dialect, file)
    for dialect in DIALECTS
    for file in sorted((CAPTURES / dialect.name).glob("*"))
    if file.suffix in MEDIA
]


def params(cases: list[tuple[Dialect, Path]]) -> list[ParameterSet]:
    return [pytest.param(dialect, file, id=f"{dialect.name}-{file.stem}") for dialect, file in cases]


FILES = params(CASES)
"""Every capture with its dialect."""

SHAPED = params([case for case in CASES if case[0].name != "generic" and case[1].suffix not in (".txt", ".messages")])
"""Those that are recognised without a content type."""

STREAMS = params(
    [case for case in CASES if case[0].name != "generic" and case[1].suffix in (".sse", ".ndjson") and shapes(case[1])]
)


def assemble_pieces(dialect: Dialect, media: str, *data: bytes) -> Assembly:
    assembly = dialect.assemble(media)
    for piece in data:
        assembly.feed(piece)
    assembly.finish()
    return assembly


def outcome(dialect: Dialect, media: str, *data: bytes) -> dict[str, Any]:
    """Everything that a dialect reads from a body, as plain JSON."""
    assembly = assemble_pieces(dialect, media, *data)
    answer = assembly.answer
    read = {
        "answer": answer,
        "complete": assembly.is_complete,
        "streamed": assembly.is_streamed,
        "summary": dataclasses.asdict(dialect.summarize_answer(answer)),
    }
    return json.loads(dumps(read))  # type: ignore[no-any-return] # it is the object just written


SAYING_NOTHING: dict[str, Any] = json.loads(dumps(dataclasses.asdict(AnswerSummary())))


def missing_parts(dialect: Dialect) -> Iterator[str]:
    """The parts that a dialect needs and does not have."""
    if not (PROFILES / f"{dialect.name}.toml").exists():
        yield f"profile calls/profiles/{dialect.name}.toml"
    elif dialect.name not in {name for profile in load_profiles().profiles for name in profile.match.dialect}:
        yield f'rules with match = {{ dialect = "{dialect.name}" }} in calls/profiles/{dialect.name}.toml'
    files = [file for file in (CAPTURES / dialect.name).glob("*") if file.suffix in MEDIA]
    if not any(file.suffix in STREAMED for file in files) and dialect.name not in NEVER_STREAMED:
        yield f"captured stream tests/calls/captures/{dialect.name}/*.sse (or another of {', '.join(sorted(STREAMED))})"
    if not any(file.suffix == ".json" for file in files):
        yield f"captured whole answer tests/calls/captures/{dialect.name}/*.json"
    for file in files:
        if not file.with_suffix(".expected").exists():
            yield f"expected answer tests/calls/captures/{dialect.name}/{file.stem}.expected"
    is_edited = dialect.answer_paths or dialect.name in NOT_EDITED
    if not is_edited and any(has_text(dialect, file) for file in files):
        yield "answer_paths, though its answers have texts"


def has_text(dialect: Dialect, file: Path) -> bool:
    """Whether a captured whole answer has a text."""
    return file.suffix == ".json" and outcome(dialect, MEDIA[file.suffix], content(file))["summary"]["text"] is not None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_dialect_has_all_its_parts(dialect: Dialect) -> None:
    missing = "; ".join(missing_parts(dialect))
    assert not missing, f"the dialect {dialect.name} has no {missing}"


def test_every_missing_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = BY_NAME["openai_chat"]
    unknown = msgspec.structs.replace(chat, name="unknown")
    assert [part.partition(" ")[0] for part in missing_parts(unknown)] == ["profile", "captured", "captured"]

    (tmp_path / "openai_chat").mkdir()
    (tmp_path / "openai_chat" / "whole.json").write_bytes(content(CAPTURES / "openai_chat" / "whole.json"))
    monkeypatch.setattr("tests.calls.test_conformance.CAPTURES", tmp_path)
    parts = [part.partition(" ")[0] for part in missing_parts(msgspec.structs.replace(chat, answer_paths=None))]
    assert parts == ["captured", "expected", "answer_paths,"]


def test_only_dialects_without_answer_paths_are_listed_as_not_edited() -> None:
    assert {dialect.name for dialect in DIALECTS if dialect.answer_paths} & NOT_EDITED == set()
    assert set(BY_NAME) >= NOT_EDITED


def test_every_profile_is_a_dialect_s() -> None:
    assert {file.stem for file in PROFILES.glob("*.toml")} == set(BY_NAME)


def test_dialects_have_names_of_their_own_and_the_generic_one_is_last() -> None:
    assert len(BY_NAME) == len(DIALECTS)
    assert max(DIALECTS, key=lambda dialect: dialect.precedence) is DIALECTS[-1] is BY_NAME["generic"]


@pytest.mark.parametrize(("dialect", "file"), FILES)
def test_a_capture_becomes_what_is_expected_of_it(dialect: Dialect, file: Path) -> None:
    expected = json.loads(file.with_suffix(".expected").read_text())
    expected.pop("source", None)
    expected["summary"] = SAYING_NOTHING | expected["summary"]
    assert outcome(dialect, MEDIA[file.suffix], content(file)) == expected


@pytest.mark.parametrize(("dialect", "file"), FILES)
def test_chunking_does_not_matter(dialect: Dialect, file: Path) -> None:
    media, body = MEDIA[file.suffix], content(file)
    whole = outcome(dialect, media, body)
    assert outcome(dialect, media, *(body[at : at + 1] for at in range(len(body)))) == whole
    # Not by Hypothesis, which needs ten milliseconds for each of 300 files. Empty pieces are among these as well.
    rnd = random.Random(f"{dialect.name}/{file.name}")
    for _ in range(few_examples(3)):
        cuts = [0, *sorted(rnd.choices(range(len(body) + 1), k=rnd.randrange(12))), len(body)]
        divided = [body[start:end] for start, end in pairwise(cuts)]
        assert outcome(dialect, media, *divided) == whole, divided


@pytest.mark.parametrize(("dialect", "file"), FILES)
def test_a_body_cut_anywhere_is_never_an_exception_and_never_whole_too_early(dialect: Dialect, file: Path) -> None:
    media, body = MEDIA[file.suffix], content(file)
    is_whole = assemble_pieces(dialect, media, body).is_complete
    for end in cuts(body, len(body.rstrip()) - 14):  # the end marker itself is shorter
        assembly = assemble_pieces(dialect, media, body[:end])
        dialect.summarize_answer(assembly.answer)
        assert assembly.is_complete is not True or is_whole is None, body[:end]


def cuts(body: bytes, size: int) -> Iterator[int]:
    """Where a body is cut: at every byte if it is short, else near the ends of lines, at its last bytes, and between."""
    # All would be quadratic. An odd step, so that the places are not the same in each of many messages of one length.
    step = max(1, size // 60) | 1
    for end in range(size):
        near_line_end = b"\n" in body[max(0, end - 1) : end + 1]
        if near_line_end or end % step == 0 or end > size - 60:
            yield end


@pytest.mark.parametrize(("dialect", "file"), SHAPED)
def test_the_media_type_may_be_wrong(dialect: Dialect, file: Path) -> None:
    body = file.read_bytes()
    right = outcome(dialect, MEDIA[file.suffix], body)
    assert outcome(dialect, "application/octet-stream", body) == right
    assert outcome(dialect, "text/event-stream", body) == right


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=few_examples(30))
@given(media=st.sampled_from(sorted(MEDIA.values())), body=st.binary(max_size=60))
def test_no_bytes_make_a_dialect_raise(dialect: Dialect, media: str, body: bytes) -> None:
    outcome(dialect, media, body)
    outcome(dialect, media, b"data: " + body + b"\n\n")


seeds = st.integers(0, 2**64 - 1)
"""Where in a value something is replaced. To draw each step into it would take ten times as long."""


def alter_json(rnd: random.Random, value: Json, new: Json) -> Json:
    """The value with a part of it replaced."""
    match value:
        case dict() if value and rnd.randrange(4):
            name = rnd.choice(sorted(value))
            return {**value, name: alter_json(rnd, value[name], new)}
        case list() if value and rnd.randrange(4):
            place = rnd.randrange(len(value))
            return [*value[:place], alter_json(rnd, value[place], new), *value[place + 1 :]]
        case _:
            return new


@pytest.mark.parametrize(("dialect", "file"), STREAMS)
@settings(max_examples=few_examples(5), suppress_health_check=[HealthCheck.too_slow])
@given(seed=seeds, new=json_values)
def test_no_event_makes_a_dialect_raise(dialect: Dialect, file: Path, seed: int, new: Json) -> None:
    messages, rnd = shapes(file), random.Random(seed)
    place = rnd.randrange(len(messages))
    messages[place] = alter_json(rnd, messages[place], new)
    begin, end = (b"", b"\n") if file.suffix == ".ndjson" else (b"data: ", b"\n\n")
    outcome(dialect, MEDIA[file.suffix], *(begin + dumps(message) + end for message in messages))


@pytest.mark.parametrize("carrier", ["bedrock_converse", "bedrock_invoke"])
@settings(max_examples=few_examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(seed=seeds, new=json_values)
def test_no_carried_event_makes_a_carrier_raise(carrier: str, seed: int, new: Json) -> None:
    rnd = random.Random(seed)
    file = rnd.choice(sorted((CAPTURES / carrier).glob("*.eventstream")))
    events = [
        (frame.message.event, parse_json(frame.payload))
        for frame in eventstream.Decoder().feed_frames(file.read_bytes())
    ]
    place = rnd.randrange(len(events))
    name, value = events[place]
    events[place] = (name, alter_json(rnd, value, new))
    if name == "chunk":
        inner = parse_json(base64.b64decode(value["bytes"]))  # type: ignore[index,arg-type,call-overload] # as Bedrock sends it
        events[place] = (name, {"bytes": base64.b64encode(dumps(alter_json(rnd, inner, new))).decode()})
    outcome(BY_NAME[carrier], MEDIA[file.suffix], *(json_frame(event, said) for event, said in events))


@pytest.mark.parametrize(
    ("dialect", "file"), params([case for case in CASES if case[1].suffix == ".messages" and case[0].name != "generic"])
)
@settings(max_examples=few_examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(seed=seeds, new=json_values)
def test_no_websocket_message_makes_a_dialect_raise(dialect: Dialect, file: Path, seed: int, new: Json) -> None:
    messages, rnd = [parse_json(line) for line in file.read_bytes().splitlines()], random.Random(seed)
    place = rnd.randrange(len(messages))
    messages[place] = alter_json(rnd, messages[place], new)
    outcome(dialect, websocket.MEDIA, websocket.frame_messages(messages_body(*map(dumps, messages))))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=few_examples(10))
@given(body=json_values)
def test_no_body_makes_a_dialect_raise(dialect: Dialect, body: Json) -> None:
    dialect.summarize_request(body)
    dialect.summarize_answer(body)


WRITERS = [
    pytest.param(dialect, form, id=f"{dialect.name}-{form}") for dialect in DIALECTS for form in dialect.stream_writers
]
"""Every form in which a dialect streams whole answers."""

FORM_SUFFIXES: dict[AnswerForm, str] = {
    "sse": ".sse",
    "array": ".array",
    "ndjson": ".ndjson",
    "eventstream": ".eventstream",
}


@pytest.mark.parametrize(("dialect", "form"), WRITERS)
def test_a_whole_answer_that_is_written_as_a_stream_is_read_as_the_same(dialect: Dialect, form: AnswerForm) -> None:
    media, request = MEDIA[FORM_SUFFIXES[form]], {"stream_options": {"include_usage": True}}
    files = [file for owner, file in CASES if owner is dialect]
    answers = [parse_json(dumps(outcome(dialect, MEDIA[file.suffix], content(file))["answer"])) for file in files]
    written = [dialect.stream_writers[form](as_object(answer), request) for answer in answers]
    read = [
        outcome(dialect, media, *one)["answer"] == answer for one, answer in zip(written, answers, strict=True) if one
    ]
    assert any(read)


@pytest.mark.parametrize(("dialect", "form"), WRITERS)
@settings(max_examples=few_examples(10))
@given(seed=seeds, new=json_values, request=json_values)
def test_no_answer_makes_a_stream_writer_raise(
    dialect: Dialect, form: AnswerForm, seed: int, new: Json, request: Json
) -> None:
    rnd = random.Random(seed)
    files = [file for file in sorted((CAPTURES / dialect.name).glob("*.json")) if b"\0" not in content(file)]
    answer = alter_json(rnd, parse_json(content(rnd.choice(files))), new)
    list(dialect.stream_writers[form](as_object(answer), as_object(request)) or ())


@pytest.mark.parametrize(
    "dialect", [dialect for dialect in DIALECTS if dialect.answer_paths], ids=lambda dialect: dialect.name
)
def test_answer_paths_lead_to_the_text(dialect: Dialect) -> None:
    read = [outcome(dialect, MEDIA[file.suffix], content(file)) for owner, file in CASES if owner is dialect]
    with_text = [one for one in read if one["summary"]["text"]]
    assert any(
        "".join(spot.value for spot in find_texts(dialect.name, one["answer"])) == one["summary"]["text"]
        for one in with_text
    )


@pytest.mark.parametrize("status", [400, 429, 500, 503, 529])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_an_error_says_the_message_and_no_answer(dialect: Dialect, status: int) -> None:
    body = dumps(dialect.error_body(status, "the message"))
    assert b"the message" in body
    assert outcome(dialect, MEDIA[".json"], body)["summary"]["tool_calls"] == []


@lru_cache(maxsize=1)
def streams() -> dict[str, list[tuple[str, bytes]]]:
    """The media type and the bytes of every streamed answer of the corpus, by dialect."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for one in (exchange(recorded) for cassette in cassettes() for recorded in cassette.exchanges):
        assert one.response is not None
        name = route_request(one.request).dialect
        media = (header(one.response.headers, "content-type") or "").lower()
        body = one.response.body.data
        body = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
        if assemble_pieces(BY_NAME[name], media, body).is_streamed:
            found.setdefault(name, []).append((media, body))
    return found


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=few_examples(12), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_chunking_does_not_matter_for_recorded_streams(dialect: Dialect, data: st.DataObject) -> None:
    found = streams().get(dialect.name)
    if not found:
        pytest.skip(f"the corpus has no streams of {dialect.name}")
    media, body = data.draw(st.sampled_from(found))
    assert outcome(dialect, media, *data.draw(pieces(body))) == outcome(dialect, media, body)


def test_a_long_stream_is_joined_whole() -> None:
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
    assembly = assemble_pieces(BY_NAME["openai_chat"], MEDIA[".sse"], *[delta] * 20_000)
    answer: Any = assembly.answer
    assert answer["choices"][0]["message"]["content"] == "word " * 20_000


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_dialect_has_answers_of_parts_or_says_why_not(dialect: Dialect) -> None:
    makes = {"compose_answer": TURNS.keys(), "compose_results": RESULTS.keys()}
    for name, dialects in makes.items():
        assert (getattr(dialect, name) is not None) == (dialect.name in dialects), (
            f"{dialect.name}: declare {name} in its module, and give requests for it in tests/calls/composed_requests.py; or say in why_no_answer why there is none"
        )
    composes = any(dialect.name in one for one in makes.values())
    assert (dialect.why_no_answer is None) == composes, (
        f"{dialect.name}: declare compose_answer or compose_results, and give requests for it in tests/calls/composed_requests.py; or say in"
        " why_no_answer why there is none: one of the two"
    )


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, cases in RESULTS.items() for at in range(len(cases))])
def test_results_become_the_answer_of_the_dialect(name: str, at: int) -> None:
    request, results, part = RESULTS[name][at]
    compose = BY_NAME[name].compose_results
    assert compose
    answer = compose(composed_parts(request, results=tuple(results)))
    assert part in dumps(answer).decode()
    outcome(BY_NAME[name], MEDIA[".json"], dumps(answer))
    for wrong in ([], [None], [{"x": 1}, 1], [["a"], 1]):
        assert compose(composed_parts(request, results=tuple(wrong))) is None


@pytest.mark.parametrize("dialect", [one for one in DIALECTS if one.compose_answer], ids=lambda dialect: dialect.name)
@settings(max_examples=few_examples(3))
@given(text=st.none() | st.text(min_size=1), arguments=st.lists(st.dictionaries(st.text(), json_values), max_size=3))
def test_a_composed_answer_says_its_parts_whole_and_streamed(
    dialect: Dialect, text: str | None, arguments: list[Json]
) -> None:
    assert dialect.compose_answer
    made = tuple(ToolCall(id=f"c{n}", name=f"tool_{n}", arguments=one) for n, one in enumerate(arguments))
    for request in TURNS[dialect.name]:
        calls = made if "calls" in request.says else ()
        if text is None and not calls:
            continue
        answer = dialect.compose_answer(composed_parts(request, text=text, tool_calls=calls))
        if made and not calls:
            assert dialect.compose_answer(composed_parts(request, text=text, tool_calls=made)) is None
        assert answer is not None
        bodies = [(".json", dumps(answer))] if not isinstance(answer, str) else [(".txt", answer.encode())]
        written = {
            form: write(as_object(answer), {**request.body, **USAGE}) for form, write in dialect.stream_writers.items()
        }
        if request.streamed:
            bodies += [
                (FORM_SUFFIXES[form], b"".join(pieces)) for form, pieces in written.items() if pieces is not None
            ]
        for suffix, body in bodies:
            assert_says(outcome(dialect, MEDIA[suffix], body), request, text, calls)


def assert_says(read: dict[str, Any], request: RequestForm, text: str | None, calls: tuple[ToolCall, ...]) -> None:
    """What was read of a composed answer is what it was composed of."""
    assert read["complete"] is not False
    assert (read["summary"]["text"] or "") == (text or "")
    found = [(call["name"], call["arguments"]) for call in read["summary"]["tool_calls"]]
    assert found == [(call.name, json.loads(dumps(request.received_arguments(call)))) for call in calls]
    if request.counts:
        assert (read["summary"]["usage"]["input_tokens"], read["summary"]["usage"]["output_tokens"]) == (11, 7)
