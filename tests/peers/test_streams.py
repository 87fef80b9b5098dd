"""Streams, cuts and large bodies, where other recorders dropped events, filled up memory, or replayed half an answer as whole."""

import asyncio
import hashlib
import json
import ssl
import struct
import zlib
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.live import sockets
from tests.peers.record_and_replay import (
    BEDROCK,
    CHAT,
    TOOLS,
    RecordAndReplay,
    Service,
    config,
    resident,
    service,
    streamed_answer,
    until,
    whole,
    worker,
)
from tests.support.wire import upstream_ca, upstream_tls

pytestmark = pytest.mark.slow

ASKED = {"model": "gpt-4o", "stream": True, "messages": [{"role": "user", "content": "go"}]}


def event(delta: dict[str, object] | None = None, **more: object) -> bytes:
    """One chunk of a streamed chat completion."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}]
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-4o",
        "choices": choices,
    }
    return b"data: " + json.dumps(answer | more).encode() + b"\n\n"


def part(arguments: str, **more: object) -> bytes:
    """A piece of a tool call's arguments."""
    return event({"tool_calls": [{"index": 0, "function": {"arguments": arguments, **more}}]})


WHOLE = (
    event({"role": "assistant", "content": None}),
    b": keep-alive\n\n",
    event({"reasoning_content": "They want"}),
    event({"reasoning_content": " a search."}),
    event(
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "search", "arguments": ""}}
            ]
        }
    ),
    part('{"que'),
    b": keep-alive\n\n",
    part('ry": "refunds"}'),
    event({}, finish_reason="tool_calls"),
    event(None, usage={"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}),
    b"data: [DONE]\n\n",
)
FAILED = (event({"content": "Hal"}), b'data: {"error": {"type": "server_error", "message": "overloaded"}}\n\n')


def until_it_ends(client: httpx.Client) -> tuple[bytes, bool]:
    """What comes of the stream, and whether it came to its end."""
    got = b""
    try:
        with client.stream("POST", CHAT, json=ASKED) as answer:
            for piece in answer.iter_raw():
                got += piece
    except httpx.TransportError:
        return got, False
    return got, True


def until_it_leaves(client: httpx.Client, size: int) -> bytes:
    """What comes until the client has seen so much, and leaves."""
    got = b""
    with client.stream("POST", CHAT, json=ASKED) as answer:
        for piece in answer.iter_raw():
            got += piece
            if len(got) >= size:
                break
    return got


def test_05_sse_with_tool_call_deltas_usage_chunk_reasoning_comment_keep_alives_and_a_mid_stream_error(
    services: RecordAndReplay,
) -> None:
    services.answers("/v1/chat/completions", streamed_answer(*WHOLE), streamed_answer(*FAILED))
    with services.recording() as agent:
        live = [until_it_ends(agent) for _ in range(2)]
    assert live == [(b"".join(WHOLE), True), (b"".join(FAILED), True)]
    good, failed = services.calls()
    [asked] = good["tool_calls"]
    assert (asked["id"], asked["name"], asked["arguments"]) == ("call_1", "search", {"query": "refunds"})
    assert (good["usage"]["input_tokens"], good["usage"]["output_tokens"]) == (9, 7)
    assert good["answer"]["choices"][0]["message"]["reasoning_content"] == "They want a search."
    assert (good["finish_reason"], good["complete"], good["streamed"]) == ("tool_calls", True, True)
    assert (failed["text"], failed["complete"], failed["status"]) == ("Hal", False, 200)

    replay = services.replay()
    with replay.client() as agent:
        assert [until_it_ends(agent) for _ in range(2)] == live
    assert replay.report(2)["served"] == 2


def test_05_a_client_abort_is_recorded_as_one_and_replayed_as_far_as_it_went(services: RecordAndReplay) -> None:
    seen = b"".join(WHOLE[:4])
    # The upstream has more to say, and says it to nobody.
    services.answers("/v1/chat/completions", streamed_answer(*WHOLE[:4], ends=False)[:-1])
    with services.recording() as agent:
        assert until_it_leaves(agent, len(seen)) == seen
    call = until(lambda: next(iter(services.calls()), None))
    assert (call["outcome"], call["complete"]) == ("client_closed", False)
    replay = services.replay()
    with replay.client() as agent:
        assert until_it_leaves(agent, len(seen)) == seen
    assert replay.report(1)["verdict"] == "right"


def test_06_a_stream_cut_before_its_terminal_event_is_marked_incomplete_and_never_served_as_a_whole_one(
    services: RecordAndReplay,
) -> None:
    """The cut is part of the record: it comes again at the same byte, and no agent takes it for the end of an answer."""
    services.answers("/v1/chat/completions", streamed_answer(*WHOLE[:6], ends=False))
    with services.recording() as agent:
        live = until_it_ends(agent)
    assert live == (b"".join(WHOLE[:6]), False)
    [call] = services.calls()
    assert (call["complete"], call["outcome"]) == (False, "server_closed")
    replay = services.replay()
    with replay.client() as agent:
        assert until_it_ends(agent) == live


def test_06_bytes_that_are_missing_from_the_record_are_not_served_at_all(
    services: RecordAndReplay, tmp_path: Path
) -> None:
    """A body beyond the limit passes whole and is kept in part: replay refuses it."""
    body = hashlib.shake_128(b"x").digest(300_000)
    services.answers("/big", whole(body, media="application/octet-stream"))
    small = config(services.upstream.port).replace("150000000", "100000")
    with service(
        services.recorder.data.parent / "limited", "--database-url", _database(services), config=small
    ) as recorder:
        with recorder.client(services.run) as agent:
            assert agent.get(f"https://{TOOLS}/big").content == body
        recorder.calls(services.run)
        file = recorder.request("GET", f"/runs/{services.run}/bundle").content
    replay = services.replay(file)
    with replay.client() as agent:
        miss = agent.get(f"https://{TOOLS}/big")
    assert (miss.status_code, miss.json()["playhead"]["reason"]) == (424, "incomplete")


def _database(services: RecordAndReplay) -> str:
    line = services.recorder.process.args
    assert isinstance(line, list)
    return str(line[line.index("--database-url") + 1])


@pytest.mark.timeout(300)
def test_10_a_40_mb_body(services: RecordAndReplay) -> None:
    """It passes, is kept whole, comes again byte for byte, and neither process keeps it in memory afterwards.

    It is larger than what a worker holds of a body (`BODY_LIMIT`), as one of 100 MB is, which takes this test 5 s of CPU more.
    """
    count = 40
    size = count * 1_000_000
    block = hashlib.shake_128(b"block").digest(1_000_000)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {size}\r\n\r\n".encode()
    services.answers("/huge", [head, *([block] * count)])
    wanted = hashlib.sha256(block * count).hexdigest()

    before = resident(worker(services.recorder))
    assert fetch_digest(services.recorder, services.run, "/huge") == wanted
    assert resident(worker(services.recorder)) - before < 32
    [call] = services.recorder.calls(services.run, is_summary=True)
    assert call["complete"] is True
    replay = services.replay()
    assert fetch_digest(services.player, replay.id, "/huge") == wanted
    assert replay.report(1)["verdict"] == "right"


def fetch_digest(at: Service, run: str, path: str) -> str:
    """The digest of a body, by a client that takes in a megabyte at a time: httpx takes a second for a hundred of them."""
    connection = at.connection(run, TOOLS)
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        seen = hashlib.sha256()
        while piece := answer.read(1 << 20):
            seen.update(piece)
        return seen.hexdigest()


def frame(kind: str, payload: dict[str, object]) -> bytes:
    """One message of an AWS event stream, with its checksums."""
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in ((":message-type", "event"), (":event-type", kind), (":content-type", "application/json"))
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack(">I", zlib.crc32(message))


def test_11_a_bedrock_eventstream(services: RecordAndReplay) -> None:
    """Its checksums hold after recording and after replay: nothing was decoded and encoded again on the way."""
    frames = (
        frame("messageStart", {"role": "assistant"}),
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hal"}}),
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "lo"}}),
        frame("messageStop", {"stopReason": "end_turn"}),
        frame("metadata", {"usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}}),
    )
    path = "/model/anthropic.claude-3-haiku/converse-stream"
    services.answers(path, streamed_answer(*frames, media="application/vnd.amazon.eventstream"))
    url = f"https://{BEDROCK}{path}"
    asked = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    signed = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261121/us-east-1/bedrock/aws4_request, Signature=%064x"
    with services.recording() as agent:
        live = agent.post(url, json=asked, headers={"authorization": signed % 1, "x-amz-date": "20261121T200000Z"})
    assert live.content == b"".join(frames)
    [call] = services.calls()
    assert (call["text"], call["complete"], call["usage"]["output_tokens"]) == ("Hallo", True, 2)
    replay = services.replay()
    with replay.client() as agent:
        again = agent.post(url, json=asked, headers={"authorization": signed % 2, "x-amz-date": "20261122T080000Z"})
    assert again.content == live.content
    assert replay.report(1)["verdict"] == "right"


def test_12_a_codex_websocket_upgrade(services: RecordAndReplay) -> None:
    """Codex speaks Responses over a WebSocket. It is recorded, and replayed, as one: no 404, no fall-back."""
    asked = json.dumps({"type": "response.create", "model": "gpt-5", "input": "hello"})

    async def speak(at: Service, run: str) -> list[str]:
        context = ssl.create_default_context(cafile=at.ca)
        proxy = at.proxy.replace("//", f"//{run}:@")
        headers = {"originator": "codex_cli_rs", "session-id": "b7e1"}
        url = "wss://api.openai.com/v1/responses"
        async with connect(url, ssl=context, proxy=proxy, additional_headers=headers) as line:
            await line.send(asked)
            return [str(await line.recv()), str(await line.recv())]

    certificate = services.recorder.data.parent / "sockets-ca.pem"
    upstream_ca().cert_pem.write_to_path(str(certificate))
    with sockets.standing(upstream_tls("127.0.0.1")) as port:
        answer = f'upstream_ca = "{certificate}"\n[upstreams]\n"api.openai.com" = "https://127.0.0.1:{port}"\n'
        with service(
            services.recorder.data.parent / "sockets", "--database-url", _database(services), config=answer
        ) as recorder:
            live = asyncio.run(speak(recorder, services.run))
            [call] = recorder.calls(services.run)
            file = recorder.request("GET", f"/runs/{services.run}/bundle").content
    assert call["text"] == "answer 1 to hello"
    replay = services.replay(file)
    assert asyncio.run(speak(services.player, replay.id)) == live
    assert replay.report(1)["verdict"] == "right"
