"""What is recorded of one side stays within the limits of size and memory, also if it is opened on a thread."""

import gzip
import random
from pathlib import Path

import pytest

from calls.codec.encoding import decode_content
from calls.events import Data
from calls.model import Headers
from proxy.recording.message_recording import REDACT_INLINE_BYTES
from tests.calls.secrets import TOKENS
from tests.proxy.recording.open_recorder import open_recorder

SSE: Headers = (("Content-Type", "text/event-stream"),)
TOKEN = TOKENS[2].encode()


async def test_a_body_beyond_the_limit_is_kept_up_to_it(directory: Path) -> None:
    with open_recorder(directory, body_limit=1000) as at:
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
    with open_recorder(directory, body_limit=1000) as at:
        one = at.begin()
        one.record_data("request", b"x" * 990 + b" " + TOKEN, 1)
        one.record_close(2, "client_closed")
    (exchange,) = at.exchanges().values()

    assert len(exchange.request.body.data) == 1000
    assert TOKEN[:6] not in exchange.request.body.data, "the limit must not hide that it is a secret"
    assert exchange.is_truncated


async def test_messages_that_are_held_back_take_no_more_room_than_there_is(directory: Path) -> None:
    with open_recorder(directory, held_limit=300) as at:
        sockets = [at.begin(method="GET", url="https://api.openai.com/v1/realtime") for _ in range(5)]
        message = b'{"type": "response.output_text.delta", "output_index": 0, "delta": "it is gh"}'
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
    with open_recorder(directory, body_limit=1000) as at:
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


def large(secret: bytes = b"") -> bytes:
    noise = random.Random(1).randbytes(REDACT_INLINE_BYTES // 2).hex().encode()
    return b'{"text": "' + noise + b" " + secret + b'"}'


async def test_a_large_compressed_body_is_opened_on_a_thread_and_everything_waits_for_its_turn(directory: Path) -> None:
    gzipped = (("Content-Encoding", "gzip"),)
    asked, answered = gzip.compress(large(TOKEN)), gzip.compress(large())
    with open_recorder(directory) as at:
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
    with open_recorder(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        one.record_data("request", gzip.compress(large()), 1)
        one.record_close(2, "client_closed")
        await at.recorder.outbox.drain()
    (exchange,) = at.exchanges().values()

    assert exchange.outcome == "client_closed"
    assert decode_content(exchange.request.body.data, "gzip") == large()


async def test_what_is_held_is_bounded_over_all_exchanges(directory: Path) -> None:
    gzipped = (("Content-Encoding", "gzip"),)
    with open_recorder(directory, held_limit=1000) as at:
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
    with open_recorder(directory, held_limit=2 * len(begun) - 1) as at:
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
    with open_recorder(directory) as at:
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
    with open_recorder(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        one.record_data("request", gzip.compress(large(TOKEN)), 1)
        monkeypatch.setattr("calls.redaction.body.HeldBody.finish", lambda _self: 1 // 0)
        one.record_end("request", 2)
        one.record_close(3, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()

    assert (exchange.is_truncated, exchange.request.body.data, exchange.outcome) == (True, b"", "completed")
    assert "ZeroDivisionError" in at.gaps()[0].reason


def test_a_recorder_needs_no_event_loop_but_to_wait(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin(headers=(("Content-Encoding", "gzip"),))
        one.record_data("request", gzip.compress(large(TOKEN)), 1)
        one.record_end("request", 2)
        one.record_close(3, "completed")
    (exchange,) = at.exchanges().values()

    assert exchange.request.body.reencoded
    assert all(TOKEN not in record.data for record in at.records() if isinstance(record, Data))
