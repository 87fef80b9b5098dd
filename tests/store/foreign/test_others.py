"""Recordings of other programs: cassetter, ExVCR, ReqCassette, nock, llama-stack and Go's httprr, after their own documentation or recordings."""

import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.foreign import httprr
from store.foreign.contents import Found, Interaction, NotReadable, SkippedEntry
from store.foreign.read import open_source
from store.foreign.vcr import from_json, from_yaml

ASKED = '{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}'
ANSWERED = '{"id":"c","object":"chat.completion","model":"gpt-4o-1","choices":[]}'
CHAT = "https://api.openai.com/v1/chat/completions"
JSON = {"Content-Type": "application/json"}

CASSETTER = """
version: 1
interactions:
- request:
    method: post
    uri: https://api.openai.com/v1/chat/completions
    headers: {content-type: [application/json]}
    body: {type: json, content: {model: gpt-4o, messages: [{role: user, content: hi}]}}
  response:
    status: 200
    headers: {content-type: [text/plain]}
    body: {type: %s}
  recorded_at: '2026-01-02T03:04:05Z'
grpc_interactions:
- request: {method: /demo.Greeter/SayHello}
ws_interactions:
- uri: wss://ws.example.com/stream
  headers: {origin: ['https://example.com']}
  frames:
  - {direction: send, frame_type: text, body: {type: text, content: '{"subscribe":"ticker"}'}, offset_ms: 0}
  - {direction: recv, frame_type: text, body: {type: json, content: {price: 42.5}}, offset_ms: 120}
  - {direction: recv, frame_type: binary, body: {type: binary, content: '000102'}, offset_ms: 250}
  recorded_at: '2026-01-05T00:00:00Z'
"""


def only(found: list[Found]) -> Interaction:
    [one] = found
    assert isinstance(one, Interaction), one
    return one


def read_value(value: Any) -> Interaction:
    return only(list(from_json(json.dumps(value).encode())))


@pytest.mark.parametrize(
    ("body", "data"),
    [
        ("json, content: {n: 1}", b'{"n":1}'),
        ("text, content: 'café'", "café".encode()),
        ("binary, content: deadbeef00ff", bytes.fromhex("deadbeef00ff")),
        ("none", b""),
    ],
)
def test_a_body_with_a_type_is_what_it_holds_and_not_its_wrapping(body: str, data: bytes) -> None:
    first, rpc, socket = from_yaml((CASSETTER % body).encode())
    assert isinstance(first, Interaction)
    assert (first.request.method, first.request.body.data, first.response.body.data) == ("POST", ASKED.encode(), data)
    assert first.started_at == 1_767_323_045 * 10**9
    assert isinstance(rpc, SkippedEntry)
    assert "gRPC" in rpc.reason
    assert isinstance(socket, Interaction)


def test_the_frames_of_a_websocket_keep_their_kinds_and_times() -> None:
    *_, socket = from_yaml((CASSETTER % "none").encode())
    assert isinstance(socket, Interaction)
    assert (socket.request.url, socket.response.status) == ("https://ws.example.com/stream", 101)
    assert [(c.kind, c.at, c.size) for c in socket.request.body.chunks] == [("text", 0, 22)]
    assert [(c.kind, c.at) for c in socket.response.body.chunks] == [("text", 120_000_000), ("binary", 250_000_000)]
    assert socket.response.body.data == b'{"price":42.5}\x00\x01\x02'


@pytest.mark.parametrize("body", ["binary, content: 0102", "binary, content: zz", "text, content: [1]"])
def test_a_body_of_another_type_than_it_says_is_skipped(body: str) -> None:
    first, *_ = from_yaml((CASSETTER % body).encode())
    assert isinstance(first, SkippedEntry)


def exvcr(**answered: Any) -> list[dict[str, Any]]:
    asked = {"body": ASKED, "headers": JSON, "method": "post", "options": [], "request_body": "", "url": CHAT}
    return [{"request": asked, "response": {"body": ANSWERED, "headers": JSON, "status_code": 200, **answered}}]


def test_exvcr_is_read_also_where_erlang_packed_the_body() -> None:
    plain = read_value(exvcr(type="ok", binary=False))
    term = b"\x83m" + len(ANSWERED).to_bytes(4) + ANSWERED.encode()
    assert read_value(exvcr(type="ok", binary=True, body=b64encode(term).decode())) == plain
    assert (plain.request.body.data, plain.response.body.data) == (ASKED.encode(), ANSWERED.encode())
    for entry in (exvcr(type="error", body="timeout"), exvcr(type="ok", binary=True)):
        [one] = from_json(json.dumps(entry).encode())
        assert isinstance(one, SkippedEntry)


def test_req_cassette_is_read_with_its_query() -> None:
    asked = {"method": "POST", "uri": CHAT, "query_string": "a=1", "body_type": "json", "body_json": json.loads(ASKED)}
    answered = {"status": 200, "headers": {}, "body_type": "blob", "body_blob": b64encode(b"\xff").decode()}
    one = read_value({"version": "1.0", "interactions": [{"request": asked, "response": answered}]})
    assert (one.request.url, one.request.body.data) == (CHAT + "?a=1", ASKED.encode())
    assert one.response.body.data == b"\xff"


@pytest.mark.parametrize(
    ("response", "binary"),
    [
        (ANSWERED, False),
        (json.loads(ANSWERED), False),
        (ANSWERED.encode().hex(), True),
        ([ANSWERED[:9].encode().hex(), ANSWERED[9:].encode().hex()], False),
    ],
    ids=["text", "parsed", "hexadecimal", "packed"],
)
def test_nock_is_read_however_it_wrote_the_body(response: Any, binary: bool) -> None:
    answer: dict[str, Any] = {"scope": "https://api.openai.com:443", "method": "POST", "path": "/v1/chat/completions"}
    answer |= {"body": json.loads(ASKED), "status": 200, "response": response, "responseIsBinary": binary}
    one = read_value([{**answer, "rawHeaders": ["Content-Type", "application/json", "X-A", "1"]}])
    assert one.request.url == "https://api.openai.com:443/v1/chat/completions"
    assert one.response.headers == (("Content-Type", "application/json"), ("X-A", "1"))
    assert (one.request.body.data, one.response.body.data) == (ASKED.encode(), ANSWERED.encode())


def llama_stack(body: Any, *, streams: bool, **others: Any) -> dict[str, Any]:
    endpoint = {"endpoint": "/v1/chat/completions", "model": "gpt-4o"}
    asked = {"method": "POST", "url": "https://api.openai.com/v1/v1/chat/completions", "headers": {}, **endpoint}
    answered = {"body": body, "is_streaming": streams, **others}
    return {"test_id": "t", "request": {**asked, "body": json.loads(ASKED)}, "response": answered}


def of_class(name: str, value: Any) -> dict[str, Any]:
    return {"__type__": name, "__data__": value}


def test_llama_stack_is_read_as_the_servers_behind_its_sdks_had_sent_it() -> None:
    one = read_value(
        llama_stack(of_class("openai.types.chat.chat_completion.ChatCompletion", json.loads(ANSWERED)), streams=False)
    )
    assert (one.request.url, one.request.body.data) == (CHAT, ASKED.encode())
    assert one.response.body.data == ANSWERED.encode()
    streamed = read_value(
        llama_stack([of_class("openai.types.X", {"id": 1}), of_class("openai.types.X", {"id": 2})], streams=True)
    )
    assert streamed.response.body.data == b'data: {"id":1}\n\ndata: {"id":2}\n\ndata: [DONE]\n\n'
    lines = read_value(llama_stack([of_class("ollama._types.ChatResponse", {"done": True})], streams=True))
    assert lines.response.body.data == b'{"done":true}\n'
    page = read_value(llama_stack([of_class("openai.types.model.Model", {"id": "m"})], streams=False))
    assert page.response.body.data == b'{"object":"list","data":[{"id":"m"}]}'
    assert (page.request.method, page.request.body.data) == ("GET", b"")


def test_what_llama_stack_saw_raised_is_skipped() -> None:
    [one] = from_json(json.dumps(llama_stack(None, streams=False, is_exception=True)).encode())
    assert isinstance(one, SkippedEntry)
    assert "exception" in one.reason


def test_a_call_of_grpc_is_named_as_one() -> None:
    [one] = from_yaml(b"interactions: [{request_sample: {raw: !!binary AAAA}, response_sample: {json: {}}}]")
    assert isinstance(one, SkippedEntry)
    assert "gRPC" in one.reason


def trace(*, end: str = "\r\n", target: str = CHAT) -> bytes:
    head = f"POST {target} HTTP/1.1{end}Host: api.openai.com{end}Content-Type: application/json{end}{end}"
    asked = (head + ASKED).encode()
    head = f"HTTP/2.0 200 OK{end}Content-Type: application/json{end}Date: Sun, 01 Jun 2025 04:30:57 GMT{end}{end}"
    answered = (head + ANSWERED).encode()
    return f"{len(asked)} {len(answered)}\n".encode() + asked + answered


def test_a_pipe_is_not_taken_for_an_empty_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(NotReadable, match="it is a pipe or a device, which cannot be read twice; write it to a file"):
        open_source(pipe)


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("target", [CHAT, "/v1/chat/completions"])
def test_a_trace_of_httprr_is_read_byte_for_byte(tmp_path: Path, end: str, target: str) -> None:
    file = tmp_path / "trace.httprr"
    file.write_bytes(b"httprr trace v1\n" + trace(end=end, target=target) * 2)
    source = open_source(file)
    one, two = source.items
    assert source.form == "httprr"
    assert isinstance(one, Interaction)
    assert isinstance(two, Interaction)
    assert (one.request.url, one.request.body.data, one.response.body.data) == (CHAT, ASKED.encode(), ANSWERED.encode())
    assert (one.response.http_version, one.response.reason) == ("HTTP/2", "OK")
    assert one.started_at == 1_748_752_257 * 10**9
    assert (two.request, two.response) == (one.request, one.response)


@pytest.mark.parametrize(
    ("chunks", "body"), [(b"3\nabc\n2;x=y\nde\n0\n\n", b"abcde"), (b"3\r\nabc\r\n0\r\n\r\n", b"abc")]
)
def test_the_frames_of_chunks_are_no_part_of_a_body(chunks: bytes, body: bytes) -> None:
    asked = b"GET https://example.com/ HTTP/1.1\nHost: example.com\n\n"
    answered = b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nContent-Type: application/x-ndjson\n\n" + chunks
    sizes = b"%d %d\n" % (len(asked), len(answered))
    assert only(list(httprr.read_httprr(b"httprr trace v1\n" + sizes + asked + answered))).response.body.data == body
    cut = b"%d %d\n" % (len(asked), len(answered) - 6)
    [one] = httprr.read_httprr(b"httprr trace v1\n" + cut + asked + answered[:-6])
    assert isinstance(one, SkippedEntry)


def test_a_trace_that_breaks_off_is_read_up_to_there() -> None:
    one, rest = httprr.read_httprr(b"httprr trace v1\n" + trace() + trace()[:-1])
    assert isinstance(one, Interaction)
    assert isinstance(rest, SkippedEntry)
    with pytest.raises(NotReadable):
        httprr.read_httprr(b"httprr trace v1\n")


@given(st.binary(max_size=80), st.integers(0, 40))
def test_whatever_follows_the_mark_is_an_exchange_or_is_skipped(data: bytes, split: int) -> None:
    sizes = b"%d %d\n" % (min(split, len(data)), len(data) - min(split, len(data)))
    for one in httprr.read_httprr(b"httprr trace v1\n" + sizes + data):
        assert isinstance(one, Interaction | SkippedEntry)


def test_an_imported_stream_is_asked_for_without_the_mark_that_mistral_s_sdk_hangs_on_it() -> None:
    entry = exvcr(type="ok", binary=False)
    entry[0]["request"]["url"] = "https://api.mistral.ai/v1/conversations#stream"
    one = read_value(entry)
    assert one.request.url == "https://api.mistral.ai/v1/conversations"
