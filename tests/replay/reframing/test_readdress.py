"""An answer of JSON-RPC finds the request that asks now, and nothing else in it changes."""

import gzip
from typing import Any

import pytest

from calls.codec.json import dumps, parse_json
from calls.derive import derive_call
from calls.model import Body, Chunk, Exchange, Response
from replay.reframing.adapt_answer import adapt_answer
from tests.replay.strategies import JSON, PROFILES, exchange, ok, post

URL = "https://tools.example.com/mcp"
EVENTS = (("content-type", "text/event-stream"),)


def rpc_request(id_: Any, token: Any = None) -> bytes:
    meta = {"_meta": {"progressToken": token}} if token is not None else {}
    return dumps(
        {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": {"name": "f", "arguments": {}, **meta}}
    )


def answer(id_: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": {"content": [{"type": "text", "text": f"id {id_}"}]}}


def progress(token: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}


def events(*messages: Any, end: bytes = b"\r\n") -> bytes:
    return b"".join(b"event: message" + end + b"data: " + dumps(one) + end + end for one in messages)


def adapted_response(recorded: Exchange, now: bytes) -> Response:
    fit = adapt_answer(recorded, post(URL, now), PROFILES)
    assert fit.misfit is None
    assert fit.exchange.response
    return fit.exchange.response


@pytest.mark.parametrize(("was", "now"), [(1, 7), (1, "1"), ("a", 2)])
def test_a_whole_answer_bears_the_new_id(was: Any, now: Any) -> None:
    response = adapted_response(exchange(post(URL, rpc_request(was)), ok(dumps(answer(was)))), rpc_request(now))
    assert parse_json(response.body.data) == {**answer(was), "id": now}


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r"])
def test_a_stream_bears_the_new_id_and_the_new_token(end: bytes) -> None:
    data = b": ping" + end + end + events(progress(1), answer(1), end=end)
    response = adapted_response(exchange(post(URL, rpc_request(1, 1)), ok(data, headers=EVENTS)), rpc_request(7, "t"))
    expected = b": ping" + end + end + events(progress("t"), {**answer(1), "id": 7}, end=end)
    assert response.body.data == expected


def test_events_keep_their_times() -> None:
    data = events(progress(1), answer(1))
    cut = len(events(progress(1)))
    chunks = (Chunk(5, 0, cut), Chunk(90, cut, len(data) - cut))
    recorded = exchange(
        post(URL, rpc_request(1, 1)),
        Response(status=200, headers=EVENTS, body=Body(data=data, chunks=chunks, size=len(data))),
    )
    response = adapted_response(recorded, rpc_request(8, 8))
    assert [chunk.at for chunk in response.body.chunks] == [5, 90]
    assert sum(chunk.size for chunk in response.body.chunks) == len(response.body.data)


def test_what_has_the_same_address_is_the_recorded_bytes() -> None:
    odd = b'{ "id" :1, "jsonrpc":"2.0","result":{}}'
    assert adapted_response(exchange(post(URL, rpc_request(1)), ok(odd)), rpc_request(1)).body.data == odd


def test_an_id_within_a_result_is_the_tool_s_own() -> None:
    inner = {**answer(1), "result": {"content": [], "structuredContent": {"id": 1, "progressToken": 1}}}
    response = adapted_response(exchange(post(URL, rpc_request(1, 1)), ok(dumps(inner))), rpc_request(2, 2))
    assert parse_json(response.body.data) == {**inner, "id": 2}


def test_the_server_s_own_requests_keep_their_ids() -> None:
    asks = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}}
    response = adapted_response(
        exchange(post(URL, rpc_request(1)), ok(events(asks, answer(1)), headers=EVENTS)), rpc_request(2)
    )
    assert response.body.data == events(asks, {**answer(1), "id": 2})


def test_a_batch_is_addressed_one_by_one() -> None:
    then = b"[" + rpc_request(1) + b"," + rpc_request(2) + b"]"
    now = b"[" + rpc_request(5) + b"," + rpc_request(6) + b"]"
    response = adapted_response(exchange(post(URL, then), ok(dumps([answer(2), answer(1)]))), now)
    assert [one["id"] for one in parse_json(response.body.data)] == [6, 5]  # type: ignore[union-attr,index,call-overload] # objects


def test_a_compressed_answer_is_opened() -> None:
    data = gzip.compress(dumps(answer(1)))
    headers = (*JSON, ("Content-Encoding", "gzip"), ("Content-Length", str(len(data))))
    response = adapted_response(exchange(post(URL, rpc_request(1)), ok(data, headers=headers)), rpc_request(2))
    assert parse_json(response.body.data) == {**answer(1), "id": 2}
    assert ("Content-Length", str(len(response.body.data))) in response.headers
    assert "content-encoding" not in {name.lower() for name, _ in response.headers}


def test_it_is_the_same_call() -> None:
    recorded = exchange(post(URL, rpc_request(1)), ok(events(answer(1)), headers=EVENTS))
    now = exchange(post(URL, rpc_request(9)), adapted_response(recorded, rpc_request(9)))
    assert derive_call(now, PROFILES).key == derive_call(recorded, PROFILES).key
    assert derive_call(now, PROFILES).text == derive_call(recorded, PROFILES).text
