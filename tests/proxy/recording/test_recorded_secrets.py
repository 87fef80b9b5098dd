"""No secret of an exchange reaches the disk, wherever an engine reports it."""

import gzip
import json
import random
from pathlib import Path

import brotli
import pytest

from calls.codec.encoding import decode_content
from calls.events import Data, Side
from calls.keys.profile import Profiles
from calls.keys.profile_toml import parse_profiles
from calls.model import Headers
from calls.redaction.redactor import Redactor
from proxy.recording.exchange_recording import ExchangeRecording
from tests.calls.secrets import KEY, TOKENS
from tests.proxy.recording.open_recorder import OpenRecorder, open_recorder

SSE: Headers = (("Content-Type", "text/event-stream"),)
TOKEN = TOKENS[2].encode()


SECRET = "sk-ant-api03-" + "pLaNtEd7sEcReT9" * 4
SHORT = "hunter2"


async def record_with_secret(at: OpenRecorder, secret: str) -> ExchangeRecording:
    """Record an exchange with a secret in every place that an engine reports."""
    byte = secret.encode()
    one = at.begin(
        run=secret,
        run_evidence=(("x-session-id", secret), ("baggage/session.id", f"a {secret} b")),
        actor=secret,
        url=f"https://user:{secret}@x.example/{secret}?key={secret}&a={secret}&sig={SHORT}#access_token={secret}",
        headers=(
            ("Authorization", f"Bearer {secret}"),
            ("X-Api-Key", secret),
            ("Cookie", f"a={secret}; {secret}; b={SHORT}"),
            ("Referer", f"https://x.example/?token={secret}"),
            ("User-Agent", f"agent {secret}"),
            ("X-Unknown", f"prefix-{secret}"),
            ("Content-Type", "application/json"),
        ),
    )
    body = json.dumps(
        {"content": f"my key is {secret}", "password": SHORT, "args": json.dumps({"api_key": secret})}
    ).encode()
    cuts = sorted(random.Random(4).sample(range(len(body)), 30))
    for n, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(body)], strict=True)):
        one.record_data("request", body[start:end], n)
    one.record_end("request", 99, (("x-trailer", secret),))
    assert await one.wait_until_recorded()
    one.record_response_head(
        100,
        200,
        f"OK {secret}",
        "HTTP/1.1",
        (
            ("Set-Cookie", f"sid={secret}; Path=/"),
            ("X-Auth-Token", secret),
            ("Location", f"https://x.example/cb?access_token={secret}"),
            ("X-Echo", f"you sent {secret}"),
            ("Content-Encoding", "br"),
            ("Content-Type", "text/event-stream"),
        ),
    )
    compressor = brotli.Compressor(quality=3)
    for n in range(20):
        event = b'data: {"key": "%s"}\n\n' % byte if n == 7 else b"data: {}\n\n"
        one.record_data("response", compressor.process(event) + compressor.flush(), 200 + n)
    one.record_data("response", compressor.finish(), 300)
    one.record_end("response", 301, (("x-checksum", secret),))
    one.record_close(302, "completed", f"while talking to {secret}")
    assert await one.wait_until_recorded()
    socket = at.begin(
        run="socket", headers=(("Sec-WebSocket-Protocol", f"realtime, openai-insecure-api-key.{secret}"),)
    )
    socket.record_end("request", 1)
    socket.record_response_head(2, 101, "Switching Protocols", "HTTP/1.1", ())
    socket.record_data("request", b'{"type":"auth","token":"%s"}' % byte, 3, "text")
    socket.record_data("response", byte, 4, "binary")
    socket.record_data("response", b"\x03\xe8" + byte, 5, "close")
    socket.record_end("response", 6)
    socket.record_close(7, "completed")
    assert await socket.wait_until_recorded()
    at.recorder.record_gap(secret, f"could not record {secret}")
    return one


def spelled_out(form: str, size: int = 4) -> list[bytes]:
    """Events with a token, split into pieces of this many letters, in this form of message."""
    said = ["the key is ", *(TOKENS[0][at : at + size] for at in range(0, len(TOKENS[0]), size)), " ok"]
    return [form.replace("%s", part).encode() for part in said]


DELTA = '{"type": "response.output_text.delta", "output_index": 0, "delta": "%s"}'


def shows_pieces(raw: bytes) -> bool:
    """Return whether part of the token, which appears nowhere else, is on disk."""
    return any(b'"%s"' % TOKENS[0][at : at + 4].encode() in raw for at in range(0, len(TOKENS[0]), 4))


async def test_pieces_that_come_together_are_one_record_with_their_times(directory: Path) -> None:
    events = [b'data: {"choices": [{"delta": {"content": "word %d. "}}]}\n\n' % n for n in range(6)]
    with open_recorder(directory) as at:
        one = at.begin(buffers_request=True)
        one.record_request(b"{}", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", SSE)
        before = at.spool.appended_count
        one.record_response_pieces([(10 + n, event) for n, event in enumerate(events)])
        assert at.spool.appended_count == before + 1
        one.record_end("response", 90)
        one.record_close(91, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    assert exchange.response.body.data == b"".join(events)
    assert exchange.response.body.size == sum(map(len, events))
    assert [(chunk.at, chunk.size) for chunk in exchange.response.body.chunks] == [
        (10 + n, len(event)) for n, event in enumerate(events)
    ]


async def test_pieces_that_come_together_end_at_the_limit(directory: Path) -> None:
    with open_recorder(directory, body_limit=250) as at:
        one = at.begin(buffers_request=True)
        one.record_request(b"{}", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", SSE)
        one.record_response_pieces([(10 + n, b"data: %0100d\n\n" % n) for n in range(4)])
        one.record_end("response", 90)
        one.record_close(91, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    body = exchange.response.body
    assert (body.truncated, body.size) == (True, 4 * 108)
    assert [(chunk.at, chunk.size) for chunk in body.chunks] == [(10, 108), (11, 108), (12, 34)]


@pytest.mark.parametrize(
    "way", ["event by event", "in groups", "as one", "compressed", "in odd pieces", "cut by the client"]
)
async def test_a_secret_that_a_model_spells_out_reaches_no_disk(directory: Path, way: str) -> None:
    events = spelled_out("data: " + DELTA + "\n\n")
    body = b"".join(events)
    headers = (*SSE, ("Content-Encoding", "gzip")) if way == "compressed" else SSE
    with open_recorder(directory) as at:
        one = at.begin(buffers_request=True)
        one.record_request(b"{}", 1)
        if way == "as one":
            one.record_response(2, 200, "OK", "HTTP/1.1", headers, body, completes_exchange=True)
        else:
            one.record_response_head(2, 200, "OK", "HTTP/1.1", headers)
            sent = {
                "compressed": [gzip.compress(body)],
                "in odd pieces": [body[n : n + 41] for n in range(0, len(body), 41)],
            }
            pieces = [(10 + n, piece) for n, piece in enumerate(sent.get(way, events))]
            for n in range(0, len(pieces), 5 if way == "in groups" else 1):
                if way == "in groups":
                    one.record_response_pieces(pieces[n : n + 5])
                else:
                    one.record_data("response", pieces[n][1], pieces[n][0])
            if way != "cut by the client":
                one.record_end("response", 90)
            one.record_close(91, "client_closed" if way == "cut by the client" else "completed")
        assert await one.wait_until_recorded()
        raw = at.raw()
    (exchange,) = at.exchanges().values()

    assert exchange.response is not None
    kept = exchange.response.body
    new = decode_content(kept.data, "gzip") if way == "compressed" else kept.data
    assert not shows_pieces(raw)
    assert not shows_pieces(new)
    assert len(new) == len(body)
    assert "".join(json.loads(event[6:])["delta"] for event in new.split(b"\n\n") if event).startswith(
        "the key is PLAYHEAD_T"
    )
    assert exchange.redactions == 1
    if way in ("event by event", "in groups"):
        assert [chunk.at for chunk in kept.chunks] == [10 + n for n in range(len(events))]


@pytest.mark.parametrize("side", ["request", "response"])
async def test_a_secret_in_the_messages_of_a_websocket_reaches_no_disk(directory: Path, side: Side) -> None:
    said = spelled_out(DELTA)
    with open_recorder(directory) as at:
        one = at.begin(method="GET", url="https://api.openai.com/v1/realtime")
        one.record_end("request", 1)
        one.record_response_head(2, 101, "Switching Protocols", "HTTP/1.1", ())
        for n, message in enumerate(said):
            one.record_data(side, message, 10 + n, "text")
        one.record_data("request", b"\x03\xe8", 90, "close")
        one.record_end("response", 91)
        one.record_close(92, "completed")
        assert await one.wait_until_recorded()
        raw = at.raw()
    (exchange,) = at.exchanges().values()

    assert exchange.response is not None
    kept = exchange.request.body if side == "request" else exchange.response.body
    found = [kept.data[c.offset :][: c.size] for c in kept.chunks if c.kind == "text"]
    assert not shows_pieces(raw)
    assert [len(message) for message in found] == [len(message) for message in said]
    assert "".join(json.loads(message)["delta"] for message in found).startswith("the key is PLAYHEAD_T")
    assert [chunk.at for chunk in kept.chunks][: len(said)] == [10 + n for n in range(len(said))]
    assert exchange.redactions == 1


async def test_what_may_go_on_waits_in_the_record_until_the_answer_is_over(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin(method="GET", url="https://api.openai.com/v1/realtime")
        one.record_end("request", 1)
        one.record_response_head(2, 101, "Switching Protocols", "HTTP/1.1", ())
        one.record_data("response", DELTA.replace("%s", "it is gh").encode(), 3, "text")
        assert await one.wait_until_recorded()
        assert not any(isinstance(record, Data) for record in at.records())
        one.record_data("response", b'{"type": "response.done"}', 4, "text")
        assert await one.wait_until_recorded()
        assert len([record for record in at.records() if isinstance(record, Data)]) == 2


async def test_what_a_profile_declares_secret_is_so_in_the_messages_of_a_socket(directory: Path) -> None:
    rules = """
    [[profile]]
    name = "live/1"
    match = { host = "live.example.com" }
    secret = ["$[*].pin"]
    """
    with open_recorder(directory, redactor=Redactor(key=KEY, profiles=Profiles(parse_profiles(rules)))) as at:
        socket = at.begin(method="GET", url="https://live.example.com/v1")
        socket.record_end("request", 1)
        socket.record_response_head(2, 101, "Switching Protocols", "HTTP/1.1", ())
        socket.record_data("request", b'{"pin": "0123456789abcdef"}', 3, "text")
        socket.record_data("response", b'{"pin": 4711081547110815}', 4, "text")
        socket.record_data("response", b'{"pin": "fedcba9876543210"', 5, "text")
        socket.record_close(6, "completed")
        assert await socket.wait_until_recorded()
    assert not any(said in at.raw() for said in (b"0123456789abcdef", b"4711081547110815", b"fedcba9876543210"))
    assert [gap.reason.partition(" (")[0] for gap in at.gaps()] == ["a message could not be redacted"]
    exchange = at.exchanges()[socket.id]
    assert (exchange.redactions, exchange.is_truncated) == (2, True)


@pytest.mark.parametrize("secret", [SECRET, TOKENS[0], TOKENS[14], TOKENS[18], TOKENS[-4]])
async def test_no_byte_of_a_secret_reaches_the_disk(directory: Path, secret: str) -> None:
    with open_recorder(directory) as at:
        await record_with_secret(at, secret)
        await at.recorder.outbox.drain()
    raw = at.raw()
    opened = b"".join(
        decode_content(exchange.response.body.data, "br")
        for exchange in at.exchanges().values()
        if exchange.response and exchange.response.body.reencoded
    )

    assert opened.count(b"PLAYHEAD_T") == 1
    for text in (raw, opened):
        # Neither the whole token, nor a part that would help to guess the rest.
        for start in range(len(secret) - 12):
            assert secret[start : start + 12].encode() not in text
        assert SHORT.encode() not in text
    assert raw.count(b"PLAYHEAD_") > 20


async def test_what_was_recorded_is_the_same_when_it_is_sent_again(directory: Path, tmp_path: Path) -> None:
    with open_recorder(directory) as at:
        one = await record_with_secret(at, SECRET)
    first = at.exchanges()[one.id]
    with open_recorder(tmp_path / "again") as second:
        again = second.begin(run=first.run, url=first.request.url, headers=first.request.headers)
        again.record_data("request", first.request.body.data, 1)
        again.record_end("request", 2)
        again.record_close(3, "completed")
    (found,) = second.exchanges().values()

    assert (found.request.url, found.request.headers) == (first.request.url, first.request.headers)
    assert found.request.body.data == first.request.body.data
    assert found.redactions == 0
    assert first.redactions > 10
