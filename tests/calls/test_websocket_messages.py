"""What was said over a WebSocket: sound is one stream however it was cut, and ids that clients mint are no part of a key."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.json import dumps
from calls.derive import derive_call
from calls.dialects.table import BY_NAME
from calls.framing import websocket
from calls.keys.key import make_key
from calls.model import Exchange, Json
from calls.websocket_messages import audio_piece, join_audio, message_value, message_values
from store.active_profiles import load_profiles
from tests.calls.sockets import messages_body, socket
from tests.calls.strategies import json_values, pieces

PROFILES = load_profiles()
REALTIME = "https://api.openai.com/v1/realtime?model=gpt-realtime"
SPOKEN = "https://api.openai.com/v1/live/sessions"
LIVE = "https://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
RESPONSES = "https://api.openai.com/v1/responses"


def append_audio(data: bytes, **more: Json) -> dict[str, Json]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode(), **more}


def exchange_with_messages(url: str, *messages: Json) -> Exchange:
    return socket(*(("request", message) for message in messages), url=url)


def key(url: str, *messages: Json) -> str:
    return make_key(exchange_with_messages(url, *messages).request, PROFILES).key


@given(data=st.data(), audio=st.binary(min_size=1, max_size=60))
def test_where_sound_is_cut_does_not_matter(data: st.DataObject, audio: bytes) -> None:
    cut = [append_audio(piece, event_id=f"e{number}") for number, piece in enumerate(data.draw(pieces(audio)))]
    assert list(join_audio([{"type": "x"}, *cut, {"type": "y"}])) == list(
        join_audio([{"type": "x"}, append_audio(audio), {"type": "y"}])
    )
    assert key(REALTIME, *cut) == key(REALTIME, append_audio(audio)) != key(REALTIME, append_audio(audio + b"!"))
    lived = [
        {"type": "session.input_audio.append", "audio": message["audio"]} for message in (*cut, append_audio(audio))
    ]
    assert key(SPOKEN, *lived[:-1]) == key(SPOKEN, lived[-1]) != key(SPOKEN)


def test_what_stands_between_cuts_sound_in_two() -> None:
    commit = {"type": "input_audio_buffer.commit"}
    assert key(REALTIME, append_audio(b"ab"), commit, append_audio(b"c")) != key(
        REALTIME, append_audio(b"a"), commit, append_audio(b"bc")
    )


@pytest.mark.parametrize(
    "message",
    [
        {"realtimeInput": {"audio": {"mimeType": "audio/pcm;rate=16000", "data": "AAE="}}},
        {"realtime_input": {"audio": {"mime_type": "audio/pcm;rate=16000", "data": "AAE"}}},
        {"realtime_input": {"media_chunks": [{"mime_type": "audio/pcm;rate=16000", "data": "AAE="}]}},
        {"realtimeInput": {"mediaChunks": [{"mimeType": "audio/pcm;rate=16000", "data": "AAE="}]}},
    ],
)
def test_google_takes_sound_in_four_spellings(message: Json) -> None:
    heard = audio_piece(message)
    assert heard is not None
    assert heard.data == b"\0\1"
    assert key(LIVE, message) == key(LIVE, {"realtimeInput": {"audio": {"mimeType": heard.frame[1], "data": "AAE="}}})


@pytest.mark.parametrize(
    "message",
    [
        append_audio(b"a") | {"audio": "no base64!"},
        {"realtimeInput": {"audio": {"mimeType": "audio/pcm", "data": "AA=="}, "text": "x"}},
        {"realtimeInput": {"mediaChunks": [{"mimeType": "image/png", "data": "AA=="}]}},
        {"realtimeInput": {"audioStreamEnd": True}},
        [],
        "input_audio_buffer.append",
    ],
)
def test_what_is_more_than_sound_counts_by_itself(message: Json) -> None:
    assert audio_piece(message) is None
    assert list(join_audio([message, message])) == [message, message]


def test_binary_messages_are_one_stream_however_they_are_cut() -> None:
    def key_of(*messages: bytes) -> str:
        return make_key(socket(*(("request", one, "binary") for one in messages)).request, PROFILES).key

    sound = bytes(range(40)) + b"{" + bytes(9) + b"["
    cuts = ((40,), (20, 41), (10, 20, 30, 50))
    keys = {key_of(*(sound[a:b] for a, b in zip((0, *cut), (*cut, None), strict=True))) for cut in cuts}
    assert keys == {key_of(sound)} != {key_of(sound[:-1])}
    # What a terminal sends stays readable, and JSON stays JSON.
    typed = socket(("request", b"l", "binary"), ("request", b"s\n", "binary"), ("request", b'{"a":1}', "binary"))
    assert message_values(typed.request.body) == ["ls\n", {"a": 1}]


NAMED: list[Json] = [
    {"user_audio_chunk": "AAE="},
    {"audio_data": "AAE="},
    {"type": "audio_input", "data": "AAE="},
    {"type": "audio_chunk", "data": {"chunk": "AAE="}},
    {"message_type": "input_audio_chunk", "audio_base_64": "AAE=", "commit": False, "sample_rate": 16000},
    {"audio": {"data": "AAE=", "encoding": "audio/wav"}},
]


@pytest.mark.parametrize("message", NAMED)
def test_services_name_sound_in_many_ways(message: Json) -> None:
    piece = audio_piece(message)
    assert piece is not None
    assert piece.data == b"\0\1"
    whole = json.loads(json.dumps(message).replace("AAE=", "AAEAAQ=="))
    assert list(join_audio([message, message])) == list(join_audio([whole]))
    assert "AAE" not in json.dumps(list(join_audio([message])))


@pytest.mark.parametrize(
    "message",
    [
        {"type": "start", "audio_format": "opus"},
        {"type": "start", "audio": {"format": "opus"}},
        {"type": "upload", "data": "AAE="},
        {"message_type": "input_audio_chunk", "audio_base_64": "", "commit": True},
        {"type": "audio_pair", "data": "AAE=", "chunk": "AAE="},
    ],
)
def test_what_is_only_about_sound_is_none(message: Json) -> None:
    assert audio_piece(message) is None


@given(json_values)
def test_no_message_surprises(message: Json) -> None:
    list(join_audio([message, message]))


@given(st.lists(st.binary(max_size=30), max_size=5), st.data())
def test_every_message_is_found_again_in_any_pieces(messages: list[bytes], data: st.DataObject) -> None:
    decoder = websocket.Decoder()
    framed = websocket.frame_messages(messages_body(*messages, kind="binary"))
    found = [message for piece in data.draw(pieces(framed)) for message in decoder.feed(piece)]
    assert [_bytes(message.event, message.data) for message in found] == messages
    assert not decoder.is_broken


def _bytes(kind: str, text: str) -> bytes:
    return base64.b64decode(text) if kind == "bytes" else text.encode()


def test_a_message_is_json_or_text_or_counts_by_its_digest() -> None:
    assert message_value(b'{"a": 1}') == {"a": 1}
    assert message_value(b'"a"') == '"a"'
    assert message_value(b"\xff") == {
        "sha256": "a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89",
        "size": 1,
    }


def test_a_goodbye_is_nothing_that_was_asked() -> None:
    bye = socket(("request", {"a": 1}), ("request", b"\x03\xe8", "close"))
    assert message_values(bye.request.body) == [{"a": 1}]


def test_ids_that_a_client_mints_are_no_part_of_the_key() -> None:
    def session(mark: str) -> list[Json]:
        item: Json = {
            "id": f"item_{mark}",
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        }
        return [
            {"type": "conversation.item.create", "event_id": f"event_{mark}", "item": item},
            {"type": "conversation.item.truncate", "item_id": f"item_{mark}", "content_index": 0, "audio_end_ms": 10},
            {"type": "response.create", "event_id": f"again_{mark}"},
        ]

    assert key(REALTIME, *session("1")) == key(REALTIME, *session("2"))
    other = session("1")
    other[1] = {**other[1], "item_id": "item_9"}  # type: ignore[dict-item]
    assert key(REALTIME, *other) != key(REALTIME, *session("1"))


def test_a_lane_may_be_called_as_one_likes() -> None:
    def turn(lane: str, text: str) -> Json:
        return {"type": "response.create", "stream_id": lane, "model": "gpt-5", "input": text}

    assert key(RESPONSES, turn("a", "x"), turn("b", "y")) == key(RESPONSES, turn("c", "x"), turn("d", "y"))
    assert key(RESPONSES, turn("a", "x"), turn("b", "y")) != key(RESPONSES, turn("a", "x"), turn("a", "y"))


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        ({"instructions": "Be long."}, True),
        ({"tools": [{"type": "function", "name": "f"}]}, True),
        ({"tracing": "auto"}, False),
        ({"audio": {"input": {"turn_detection": None}}}, True),
    ],
)
def test_settings_of_a_session_count_except_those_for_tracing(change: dict[str, Any], matters: bool) -> None:
    plain: Json = {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}}
    changed: Json = {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief.", **change}}
    assert (key(REALTIME, plain) != key(REALTIME, changed)) is matters


def test_a_websocket_is_not_the_page_at_the_same_place() -> None:
    opened = socket().request
    page = opened.__class__(method="GET", url=opened.url)
    assert make_key(opened, PROFILES).key != make_key(page, PROFILES).key


@pytest.mark.parametrize(
    ("url", "dialect", "provider"),
    [
        (REALTIME, "openai_realtime", "openai"),
        (
            "https://a.openai.azure.com/openai/realtime?api-version=1&deployment=gpt-realtime",
            "openai_realtime",
            "azure.ai.openai",
        ),
        ("https://a.openai.azure.com/openai/v1/realtime?model=gpt-realtime", "openai_realtime", "azure.ai.openai"),
        (
            "https://a.services.ai.azure.com/voice-live/realtime?model=gpt-realtime",
            "openai_realtime",
            "azure.ai.inference",
        ),
        ("https://api.x.ai/v1/realtime?model=gpt-realtime", "openai_realtime", "x_ai"),
        (LIVE + "?key=PLAYHEAD_X", "gemini_live", "gcp.gemini"),
        (
            "https://us-central1-aiplatform.googleapis.com/ws/google.cloud.aiplatform.v1beta1.LlmBidiService/BidiGenerateContent",
            "gemini_live",
            "gcp.vertex_ai",
        ),
        (RESPONSES, "openai_responses_socket", "openai"),
    ],
)
def test_a_websocket_is_routed_by_its_opening(url: str, dialect: str, provider: str) -> None:
    call = derive_call(socket(url=url), PROFILES)
    assert (call.dialect, call.provider, call.kind) == (dialect, provider, "model")
    assert call.model_requested == ("gpt-realtime" if dialect == "openai_realtime" else None)
    assert call.warnings == ()


def test_a_session_of_several_turns_is_one_call_with_all_of_them() -> None:
    def turn(number: int, text: str) -> list[Json]:
        answer: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        usage: Json = {
            "input_tokens": 10 * number,
            "output_tokens": number,
            "input_token_details": {"cached_tokens": 1},
        }
        done: Json = {"id": f"r{number}", "status": "completed", "output": [answer], "usage": usage}
        return [
            {"type": "response.created", "response": {"id": f"r{number}", "status": "in_progress", "output": []}},
            {"type": "response.done", "response": done},
        ]

    begun: Json = {"type": "session.update", "session": {"type": "realtime", "model": "gpt-realtime-mini"}}
    item: Json = {"type": "function_call_output", "call_id": "c1", "output": "5"}
    created: Json = {"type": "conversation.item.create", "item": item}
    session = socket(
        ("request", begun),
        *(("response", message) for message in turn(1, "One.")),
        ("request", created),
        *(("response", message) for message in turn(2, "Two.")),
        url=REALTIME,
    )
    call = derive_call(session, PROFILES)
    assert call.text == "One.\nTwo."
    assert (call.usage.input_tokens, call.usage.output_tokens, call.usage.cached_tokens) == (30, 3, 2)
    assert (call.finish_reason, call.complete, call.model_requested) == ("completed", True, "gpt-realtime-mini")
    assert call.tool_results == ({"id": "c1", "content": "5"},)
    assert json.loads(json.dumps(call.answer))["responses"][1]["id"] == "r2"


CAPTURES = Path(__file__).parent / "captures"


def events(dialect: str, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CAPTURES / dialect / f"{name}.messages").read_text().splitlines()]


def assemble_answer(dialect: str, messages: list[dict[str, Any]]) -> Any:
    assembly = BY_NAME[dialect].assemble(websocket.MEDIA)
    assembly.feed(websocket.frame_messages(messages_body(*map(dumps, messages))))
    assembly.finish()
    return json.loads(dumps(assembly.answer))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["audio_and_transcripts", "function_call_and_error"])
def test_a_response_of_a_session_is_one_to_the_sdk(name: str) -> None:
    from openai.types.realtime import RealtimeResponse

    for response in assemble_answer("openai_realtime", events("openai_realtime", name))["responses"]:
        assert RealtimeResponse.model_validate(response).to_dict() == response


@pytest.mark.slow
def test_a_response_over_a_socket_is_one_to_the_sdk() -> None:
    from openai.types.responses.responses_server_event import ResponseWsCompleted

    messages = events("openai_responses_socket", "two_conversations_at_once")
    judged = [ResponseWsCompleted.construct(**one) for one in messages if one["type"] == "response.completed"]
    ours = assemble_answer("openai_responses_socket", messages)["responses"]
    assert sorted(ours, key=str) == sorted((one.response.to_dict() for one in judged), key=str)


def test_a_response_that_is_named_anew_with_every_event_is_one_response() -> None:
    """As GitHub Copilot does (vercel/ai's github-copilot-id-rotation.1)."""
    first: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "a", "status": "in_progress", "output": []}},
        {"type": "response.in_progress", "response": {"id": "b", "status": "in_progress", "output": []}},
        {"type": "response.completed", "response": {"id": "c", "status": "completed", "output": []}},
    ]
    second = [one | {"response": one["response"] | {"id": one["response"]["id"] + "2"}} for one in first]
    ours = assemble_answer("openai_responses_socket", [*first, *second])["responses"]
    assert [(one["id"], one["status"]) for one in ours] == [("c", "completed"), ("c2", "completed")]


@pytest.mark.parametrize("name", ["audio_and_transcripts", "function_call_and_error"])
def test_pieces_make_what_the_end_says(name: str) -> None:
    """Without every event that tells something whole, a session says the same: but for what is said only at the end."""
    messages = events("openai_realtime", name)
    pieces_only = [one for one in messages if not one["type"].endswith(".done")]
    whole, made = (
        BY_NAME["openai_realtime"].summarize_answer(assemble_answer("openai_realtime", some))
        for some in (messages, pieces_only)
    )
    assert (made.text, made.tool_calls) == (whole.text, whole.tool_calls)
    assert whole.text or whole.tool_calls


@pytest.mark.slow
def test_a_turn_of_gemini_is_what_its_sdk_reads_in_the_messages() -> None:
    from google.genai.types import LiveServerMessage

    messages = events("gemini_live", "text_tool_and_usage")
    judged = [LiveServerMessage.model_validate(one) for one in messages]
    summary = BY_NAME["gemini_live"].summarize_answer(assemble_answer("gemini_live", messages))
    assert summary.text == "".join(one.text or "" for one in judged)
    (call,) = [call for one in judged if one.tool_call for call in one.tool_call.function_calls or ()]
    assert [(one.id, one.name, one.arguments) for one in summary.tool_calls] == [(call.id, call.name, call.args)]
    (usage,) = [one.usage_metadata for one in judged if one.usage_metadata]
    assert (summary.usage.input_tokens, summary.usage.cached_tokens) == (22, usage.cached_content_token_count)
