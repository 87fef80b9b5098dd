"""The recorder writes every event to the spool once, in order, and without secrets."""

import gzip
import json
import random
from pathlib import Path

import brotli
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.codec.encoding import decode_content
from calls.events import Data, ExchangeClosed, MessageEnded, RequestStarted, Side
from calls.keys.profile import Profiles
from calls.keys.profile_toml import parse_profiles
from calls.model import Chunk, Headers
from calls.redaction.redactor import RedactedHead, Redactor
from proxy.recording.exchange_recording import ExchangeRecording
from proxy.recording.message_recording import REDACT_INLINE_BYTES
from proxy.recording.recorder import Recorder
from proxy.recording.request_start import HeadMemo
from tests.calls.secrets import KEY, TOKENS
from tests.proxy.recorded_exchanges import JSON, URL, Desk, desk

SSE: Headers = (("Content-Type", "text/event-stream"),)
TOKEN = TOKENS[2].encode()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool"


async def test_an_exchange_comes_out_as_it_passed(directory: Path) -> None:
    with desk(directory) as at:
        one = at.begin(run="run-1", run_evidence=(("credentials", "run-1"),), step=4, actor="planner")
        one.record_data("request", b'{"a":', 5)
        one.record_data("request", b" 1}", 6)
        one.record_end("request", 7, (("x-request-id", "t"),))
        assert await one.wait_until_recorded()
        one.record_response_head(20, 100, "Continue", "HTTP/1.1", ())
        one.record_response_head(30, 200, "OK", "HTTP/1.1", SSE)
        for n in range(3):
            one.record_data("response", b"data: %d\n\n" % n, 40 + n)
        one.record_end("response", 50, (("x-trailer", "t"),))
        one.record_close(51, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()

    assert (exchange.run, exchange.step, exchange.actor) == ("run-1", 4, "planner")
    assert exchange.run_evidence == (("credentials", "run-1"),)
    assert exchange.request.body.data == b'{"a": 1}'
    assert exchange.request.body.chunks == (Chunk(5, 0, 5), Chunk(6, 5, 3))
    assert exchange.request.trailers == (("x-request-id", "t"),)
    assert exchange.response is not None
    assert exchange.response.body.data == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert [chunk.at for chunk in exchange.response.body.chunks] == [40, 41, 42]
    assert exchange.response.trailers == (("x-trailer", "t"),)
    assert (exchange.first_byte_at, exchange.ended_at, exchange.outcome) == (30, 51, "completed")
    assert (exchange.redactions, exchange.is_truncated) == (0, False)


def test_a_clock_that_goes_back_takes_no_exchange_with_it(directory: Path) -> None:
    times = (second * 10**9 for second in (10, 50, 20, 20, 60))
    with desk(directory) as at:
        recorder = Recorder(at.spool, at.recorder.redactor, now=lambda: next(times))
        for _ in range(5):
            recorder.begin(run="r", method="GET", url="https://a.test/", http_version="HTTP/1.1", headers=())
    starts = [record.started_at for record in at.records() if isinstance(record, RequestStarted)]
    assert starts == [10 * 10**9, 50 * 10**9, 50 * 10**9 + 1, 50 * 10**9 + 2, 60 * 10**9]


def test_an_exchange_starts_when_its_head_arrives_and_not_when_it_is_redacted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [1000]
    redact = Redactor.redact_request_head

    def redact_slowly(redactor: Redactor, method: str, url: str, headers: Headers) -> RedactedHead:
        times.append(2000)
        return redact(redactor, method, url, headers)

    monkeypatch.setattr(Redactor, "redact_request_head", redact_slowly)
    with desk(directory) as at:
        recorder = Recorder(at.spool, at.recorder.redactor, now=lambda: times[-1])
        recorder.begin(run="r", method="GET", url=URL, http_version="HTTP/1.1", headers=())
    assert [one.started_at for one in at.records() if isinstance(one, RequestStarted)] == [1000]


def test_a_head_that_repeats_is_recorded_as_if_it_were_new(directory: Path) -> None:
    def record(recorder: Recorder, length: str, run: str, memo: HeadMemo | None) -> None:
        headers = (("Authorization", "Bearer sk-secret"), ("Content-Length", length), ("X-Odd", "Ada"), *JSON)
        recorder.begin(
            run=run,
            run_evidence=(("credentials", run),),
            actor="sk-ant-api03-" + "a1B2" * 20,
            method="POST",
            url=f"{URL}?api_key=hunter2",
            http_version="HTTP/1.1",
            headers=headers,
            memo=memo,
        )

    memo = HeadMemo()
    with desk(directory) as at:
        for known in (memo, None):
            for length, run in (("5", "r"), ("17", "r"), ("4711", "other"), ("5", "other")):
                record(at.recorder, length, run, known)
    starts = [replace(one, id="", started_at=0) for one in at.records() if isinstance(one, RequestStarted)]
    assert len(starts) == 8
    assert starts[:4] == starts[4:]
    assert [dict(one.headers)["Content-Length"] for one in starts[:4]] == ["5", "17", "4711", "5"]
    assert not any(secret in str(starts) for secret in ("sk-secret", "sk-ant", "hunter2", "Ada"))


async def test_kept_means_written(directory: Path) -> None:
    with desk(directory) as at:
        one = at.begin()
        one.record_data("request", b"{}", 1)
        one.record_end("request", 2)
        await one.wait_until_recorded()

        assert [type(record).__name__ for record in at.records()] == ["RequestStarted", "Data", "MessageEnded"]


@pytest.mark.parametrize("outcome", ["completed", "client_closed", "server_closed", "timed_out", "refused"])
async def test_an_exchange_is_closed_once_whatever_comes_after(directory: Path, outcome: str) -> None:
    with desk(directory) as at:
        one = at.begin()
        one.record_close(5, outcome, "why")  # type: ignore[arg-type]
        one.record_close(6, "completed")
        one.record_data("request", b"late", 7)
        one.record_response_head(8, 200, "OK", "HTTP/1.1", ())
        one.record_data("response", b"late", 9)
        one.record_end("response", 10)
    records = at.records()

    assert [record for record in records if isinstance(record, ExchangeClosed)] == records[-1:]
    (exchange,) = at.exchanges().values()
    assert (exchange.outcome, exchange.error, exchange.response) == (outcome, "why", None)


async def test_a_cut_response_keeps_what_came_also_the_tail_that_waited(directory: Path) -> None:
    with desk(directory) as at:
        one = at.begin()
        one.record_end("request", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", SSE)
        one.record_data("response", b"data: s", 3)
        one.record_close(4, "server_closed", "reset")
    (exchange,) = at.exchanges().values()

    assert exchange.response is not None
    assert exchange.response.body.data == b"data: s"
    assert (exchange.outcome, exchange.is_truncated) == ("server_closed", False)


async def test_a_response_may_come_before_the_request_has_ended(directory: Path) -> None:
    with desk(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        zipped = gzip.compress(b"hello")
        one.record_data("request", zipped[:5], 1)
        one.record_response_head(2, 413, "Too Large", "HTTP/1.1", JSON)
        one.record_data("response", b"{}", 3)
        one.record_end("response", 4)
        one.record_data("request", zipped[5:], 5)
        one.record_end("request", 6)
        one.record_close(7, "completed")
    (exchange,) = at.exchanges().values()

    assert exchange.request.body.data == zipped
    assert [chunk.at for chunk in exchange.request.body.chunks] == [1, 5]
    assert exchange.response is not None
    assert exchange.response.status == 413


# -- secrets

SECRET = "sk-ant-api03-" + "pLaNtEd7sEcReT9" * 4
SHORT = "hunter2"


async def record_with_secret(at: Desk, secret: str) -> ExchangeRecording:
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
    with desk(directory) as at:
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
    with desk(directory, body_limit=250) as at:
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
    with desk(directory) as at:
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
    with desk(directory) as at:
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
    with desk(directory) as at:
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
    with desk(directory, redactor=Redactor(key=KEY, profiles=Profiles(parse_profiles(rules)))) as at:
        socket = at.begin(method="GET", url="https://live.example.com/v1")
        socket.record_end("request", 1)
        socket.record_response_head(2, 101, "Switching Protocols", "HTTP/1.1", ())
        socket.record_data("request", b'{"pin": "0123456789abcdef"}', 3, "text")
        socket.record_data("response", b'{"pin": 4711}', 4, "text")
        socket.record_data("response", b'{"pin": "fedcba9876543210"', 5, "text")
        socket.record_close(6, "completed")
        assert await socket.wait_until_recorded()
    assert not any(said in at.raw() for said in (b"0123456789abcdef", b"4711", b"fedcba9876543210"))
    assert [gap.reason.partition(" (")[0] for gap in at.gaps()] == ["a message could not be redacted"]
    exchange = at.exchanges()[socket.id]
    assert (exchange.redactions, exchange.is_truncated) == (2, True)


@pytest.mark.parametrize("secret", [SECRET, TOKENS[0], TOKENS[14], TOKENS[18], TOKENS[-4]])
async def test_no_byte_of_a_secret_reaches_the_disk(directory: Path, secret: str) -> None:
    with desk(directory) as at:
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
    with desk(directory) as at:
        one = await record_with_secret(at, SECRET)
    first = at.exchanges()[one.id]
    with desk(tmp_path / "again") as second:
        again = second.begin(run=first.run, url=first.request.url, headers=first.request.headers)
        again.record_data("request", first.request.body.data, 1)
        again.record_end("request", 2)
        again.record_close(3, "completed")
    (found,) = second.exchanges().values()

    assert (found.request.url, found.request.headers) == (first.request.url, first.request.headers)
    assert found.request.body.data == first.request.body.data
    assert found.redactions == 0
    assert first.redactions > 10


# -- limits


async def test_a_body_beyond_the_limit_is_kept_up_to_it(directory: Path) -> None:
    with desk(directory, body_limit=1000) as at:
        one = at.begin()
        for n in range(30):
            one.record_data("request", b"%099d\n" % n, n)
        one.record_end("request", 50)
        one.record_close(51, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    body = exchange.request.body

    assert body.data == b"".join(b"%099d\n" % n for n in range(10))
    assert (body.size, body.truncated) == (3000, True)
    assert exchange.outcome == "completed"


async def test_one_piece_beyond_the_limit_is_kept_in_part(directory: Path) -> None:
    with desk(directory, body_limit=1000) as at:
        one = at.begin()
        one.record_data("request", b"x" * 990 + b" " + TOKEN, 1)
        one.record_close(2, "client_closed")
    (exchange,) = at.exchanges().values()

    assert len(exchange.request.body.data) == 1000
    assert TOKEN[:6] not in exchange.request.body.data, "the limit must not hide that it is a secret"
    assert exchange.is_truncated


async def test_messages_that_are_held_back_take_no_more_room_than_there_is(directory: Path) -> None:
    with desk(directory, held_limit=300) as at:
        sockets = [at.begin(method="GET", url="https://api.openai.com/v1/realtime") for _ in range(5)]
        message = DELTA.replace("%s", "it is gh").encode()
        for socket in sockets:
            socket.record_end("request", 1)
            socket.record_response_head(2, 101, "Switching Protocols", "HTTP/1.1", ())
            for n in range(2):
                socket.record_data("response", message, 3 + n, "text")
        for socket in sockets:
            socket.record_end("response", 9)
            socket.record_close(10, "completed")
        last = at.begin(method="GET", url="https://api.openai.com/v1/realtime")
        last.record_end("request", 1)
        last.record_response_head(2, 101, "Switching Protocols", "HTTP/1.1", ())
        last.record_data("response", message, 3, "text")
        last.record_close(10, "completed")
        assert await last.wait_until_recorded()
    exchanges = list(at.exchanges().values())
    bodies = [exchange.response.body for exchange in exchanges if exchange.response]
    assert all(body.size == 2 * len(message) for body in bodies[:-1])
    truncated = [body.truncated for body in bodies]
    assert (truncated[0], truncated[-2:]) == (False, [True, False])
    assert [gap.reason for gap in at.gaps()] == ["there was no room to hold the response messages back"] * sum(
        truncated
    )


async def test_messages_of_a_socket_beyond_the_limit_are_counted(directory: Path) -> None:
    with desk(directory, body_limit=1000) as at:
        one = at.begin()
        one.record_end("request", 1)
        one.record_response_head(2, 101, "", "HTTP/1.1", ())
        for n in range(12):
            one.record_data("response", b"x" * 100, 3 + n, "binary")
        one.record_end("response", 20)
        one.record_close(21, "completed")
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    body = exchange.response.body

    assert (len(body.data), body.size, len(body.chunks), body.truncated) == (1000, 1200, 12, True)
    assert "beyond the limit" in at.gaps()[0].reason


# -- compressed bodies


def large(secret: bytes = b"") -> bytes:
    noise = random.Random(1).randbytes(REDACT_INLINE_BYTES // 2).hex().encode()
    return b'{"text": "' + noise + b" " + secret + b'"}'


async def test_a_large_compressed_body_is_opened_on_a_thread_and_everything_waits_for_its_turn(directory: Path) -> None:
    gzipped = (("Content-Encoding", "gzip"),)
    asked, answered = gzip.compress(large(TOKEN)), gzip.compress(large())
    with desk(directory) as at:
        one = at.begin(headers=gzipped)
        for n in range(0, len(asked), 10_000):
            one.record_data("request", asked[n : n + 10_000], n)
        one.record_end("request", 10**6)
        one.record_response_head(10**6 + 1, 200, "OK", "HTTP/1.1", gzipped)
        one.record_data("response", answered, 10**6 + 2)
        one.record_end("response", 10**6 + 3)
        one.record_close(10**6 + 4, "completed")
        assert at.spool.appended_count == 1, "all but the head stands in line"
        assert await one.wait_until_recorded()
        assert at.spool.appended_count == at.spool.written_count
    (exchange,) = at.exchanges().values()
    body = exchange.request.body

    assert TOKEN not in decode_content(body.data, "gzip")
    assert len(decode_content(body.data, "gzip")) == len(large(TOKEN))
    assert (body.reencoded, body.size, len(body.chunks)) == (True, len(asked), -(-len(asked) // 10_000))
    assert exchange.response is not None
    assert (exchange.response.body.data, exchange.response.body.reencoded) == (answered, False)
    assert at.gaps() == []


async def test_closing_waits_for_what_is_being_opened(directory: Path) -> None:
    with desk(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        one.record_data("request", gzip.compress(large()), 1)
        one.record_close(2, "client_closed")
        await at.recorder.outbox.drain()
    (exchange,) = at.exchanges().values()

    assert exchange.outcome == "client_closed"
    assert decode_content(exchange.request.body.data, "gzip") == large()


async def test_what_is_held_is_bounded_over_all_exchanges(directory: Path) -> None:
    gzipped = (("Content-Encoding", "gzip"),)
    with desk(directory, held_limit=1000) as at:
        first, second = at.begin(headers=gzipped), at.begin(headers=gzipped)
        first.record_data("request", b"x" * 900, 1)
        second.record_data("request", b"y" * 200, 1)
        second.record_end("request", 2)
        first.record_end("request", 2)
        third = at.begin(headers=gzipped)
        third.record_data("request", b"z" * 900, 1)
        third.record_end("request", 2)
        for one in (first, second, third):
            one.record_close(3, "completed")
    bodies = [exchange.request.body for _, exchange in sorted(at.exchanges().items())]

    assert [(body.size, len(body.data), body.truncated) for body in bodies] == [
        (900, 900, False),
        (200, 0, True),
        (900, 900, False),
    ]


async def test_what_waits_of_streams_is_bounded_over_all_exchanges(directory: Path) -> None:
    events = (("Content-Type", "text/event-stream"),)
    begun = b'data: {"choices": [{"index": 0, "delta": {"content": "my key: sk-proj-"}}]}\n\n'
    ended = b'data: {"choices": [{"index": 0, "delta": {"content": " is all"}}]}\n\n'
    with desk(directory, held_limit=2 * len(begun) - 1) as at:
        first, second = at.begin(headers=events), at.begin(headers=events)
        for one in (first, second):
            one.record_data("request", begun, 1)
        room_while_held = at.recorder.resources._free_memory
        for one in (first, second):
            one.record_data("request", ended, 2)
            one.record_end("request", 3)
            one.record_close(3, "completed")
        third = at.begin(headers=events)
        third.record_data("request", begun, 1)
        third.record_close(3, "client_closed")
        assert (room_while_held, at.recorder.resources._free_memory) == (len(begun) - 1, 2 * len(begun) - 1)
    bodies = [exchange.request.body for _, exchange in sorted(at.exchanges().items())]

    assert [(body.size, len(body.data), body.truncated) for body in bodies[:2]] == [
        (len(begun + ended), len(begun + ended), False),
        (len(begun + ended), len(begun), True),
    ]
    assert len(bodies[2].data) == len(begun)


async def test_a_body_that_must_not_be_kept_is_a_gap(directory: Path) -> None:
    damaged = gzip.compress(b"my key: " + TOKEN)[:-8] + bytes(8)
    with desk(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        one.record_data("request", damaged, 1)
        one.record_end("request", 2)
        one.record_close(3, "completed")
    (exchange,) = at.exchanges().values()
    (gap,) = at.gaps()

    assert (exchange.request.body.data, exchange.request.body.size, exchange.is_truncated) == (b"", len(damaged), True)
    assert (gap.run, gap.exchange) == ("r", one.id)
    assert "could not be redacted" in gap.reason


async def test_a_mistake_of_ours_keeps_no_exchange_open(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        one.record_data("request", gzip.compress(large(TOKEN)), 1)
        monkeypatch.setattr("calls.redaction.body.HeldBody.finish", lambda _self: 1 // 0)
        one.record_end("request", 2)
        one.record_close(3, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()

    assert (exchange.is_truncated, exchange.request.body.data, exchange.outcome) == (True, b"", "completed")
    assert "ZeroDivisionError" in at.gaps()[0].reason


# -- any order


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(
        st.sampled_from(["ask", "ask end", "1xx", "answer", "data", "end", "text", "close", "gzip"]),
        min_size=1,
        max_size=14,
    ),
    st.sampled_from([None, "gzip", "br"]),
)
def test_whatever_an_engine_tells_the_records_are_legal(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], coding: str | None
) -> None:
    headers: Headers = (("Content-Encoding", coding),) if coding else ()
    with desk(tmp_path_factory.mktemp("any") / "spool", body_limit=400) as at:
        one = at.begin(headers=headers)
        for n, word in enumerate(words):
            match word:
                case "ask" | "gzip":
                    one.record_data("request", gzip.compress(b"a" * n) if word == "gzip" else b"sk-" * n, n)
                case "ask end":
                    one.record_end("request", n)
                case "1xx":
                    one.record_response_head(n, 103, "", "HTTP/1.1", ())
                case "answer":
                    one.record_response_head(n, 200, "", "HTTP/1.1", headers)
                case "data":
                    one.record_data("response", b'"password": "' * n, n)
                case "end":
                    one.record_end("response", n)
                case _:
                    one.record_close(n, "client_closed")
        one.record_close(99, "server_closed")
    records = at.records()

    assert len([record for record in records if isinstance(record, ExchangeClosed)]) == 1
    assert isinstance(records[-1], ExchangeClosed)
    assert len([record for record in records if isinstance(record, MessageEnded)]) <= 2
    at.exchanges()


def test_a_recorder_needs_no_event_loop_but_to_wait(directory: Path) -> None:
    with desk(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        one.record_data("request", gzip.compress(large(TOKEN)), 1)
        one.record_end("request", 2)
        one.record_close(3, "completed")
    (exchange,) = at.exchanges().values()

    assert exchange.request.body.reencoded
    assert all(TOKEN not in record.data for record in at.records() if isinstance(record, Data))
