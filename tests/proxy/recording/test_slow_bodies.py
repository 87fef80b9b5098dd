"""A streamed body that takes long to redact is redacted on the thread, with the same record, so that others need not wait."""

import gzip
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from calls.codec.encoding import decode_content
from calls.model import Chunk, Headers
from calls.redaction.body import Piece
from calls.redaction.streams.streamed_body import StreamedBody
from proxy.lane.h2.wire import WINDOW
from proxy.recording.exchange_recording import THREAD_BYTES
from proxy.recording.redaction_speed import INLINE_FEED
from tests.calls.secrets import TOKENS
from tests.proxy.recording.open_recorder import OpenRecorder, open_recorder

TEXT: Headers = (("Content-Type", "text/plain"),)
TOKEN = TOKENS[2].encode()
SLOW = b"token=" * (2 * INLINE_FEED // 6) + b"\n" + TOKEN + b" \n"
"""Nearly every word of it begins a secret."""

WORDS = b"a few words \n" * 1024


@pytest.fixture
def redacting_threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the thread of the test redacted, for each time that pieces were."""
    found: list[bool] = []
    feed = StreamedBody.feed_together

    def noting(body: StreamedBody[Piece], pieces: Sequence[tuple[int, bytes]]) -> list[Piece]:
        found.append(threading.current_thread() is threading.main_thread())
        return feed(body, pieces)

    monkeypatch.setattr(StreamedBody, "feed_together", noting)
    return found


async def record_answer(at: OpenRecorder, pieces: Sequence[bytes]) -> None:
    one = at.begin()
    one.record_end("request", 1)
    one.record_response_head(2, 200, "OK", "HTTP/1.1", TEXT)
    for number, piece in enumerate(pieces):
        one.record_data("response", piece, 10 + number)
    one.record_end("response", 98)
    one.record_close(99, "completed")
    assert await one.wait_until_recorded()


async def test_a_slow_body_is_recorded_as_it_came_and_without_its_secrets(
    directory: Path, redacting_threads: list[bool]
) -> None:
    pieces = [b"first ", SLOW, SLOW, b"token=", b"last\n"]
    with open_recorder(directory) as at:
        await record_answer(at, pieces)
    (exchange,) = at.exchanges().values()

    assert redacting_threads.count(False) >= 2
    assert exchange.response is not None
    body = exchange.response.body
    assert body.data == at.recorder.redactor.redact_body(b"".join(pieces), "text/plain", is_answer=True)[0]
    assert TOKEN not in at.raw()
    ends = [sum(map(len, pieces[: number + 1])) for number in range(len(pieces))]
    assert body.chunks == tuple(
        Chunk(10 + number, end - len(piece), len(piece))
        for number, (piece, end) in enumerate(zip(pieces, ends, strict=True))
    )
    assert (exchange.outcome, exchange.is_truncated) == ("completed", False)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_long_message_that_is_held_back_is_redacted_on_the_thread(
    directory: Path, redacting_threads: list[bool], monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Each of its pieces is small, and all are searched when the last one, or the end of the body, decides them."""
    finishing_threads: list[bool] = []
    finish = StreamedBody.finish

    def noting(body: StreamedBody[Piece]) -> list[Piece]:
        finishing_threads.append(threading.current_thread() is threading.main_thread())
        return finish(body)

    monkeypatch.setattr(StreamedBody, "finish", noting)
    message = b"data: " + b"token=" * 6000 + TOKEN + (b"\n\n" if ends else b"")
    pieces = [message[at : at + 3000] for at in range(0, len(message), 3000)]
    with open_recorder(directory) as at:
        one = at.begin()
        one.record_end("request", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", (("Content-Type", "text/event-stream"),))
        for number, piece in enumerate(pieces):
            one.record_data("response", piece, 10 + number)
            assert await one.wait_until_recorded()
        one.record_end("response", 98)
        one.record_close(99, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    assert (exchange.response.body.size, exchange.response.body.truncated) == (len(message), False)
    assert TOKEN not in at.raw()
    # At first a body is not known to be slow: up to 16 KB are held back.
    assert redacting_threads.index(False) <= 6
    assert not any(redacting_threads[6:])
    assert finishing_threads == [True, False]  # of the request, and of the answer


async def test_a_fast_body_is_not_sent_to_the_thread(directory: Path, redacting_threads: list[bool]) -> None:
    with open_recorder(directory) as at:
        await record_answer(at, [b"a few words and %s \n" % TOKEN, b"and more \n"])

    assert all(redacting_threads)


async def test_senders_wait_while_much_of_a_body_waits_for_the_thread(directory: Path) -> None:
    may_redact = threading.Event()
    with open_recorder(directory) as at:
        run = at.recorder.resources.run_on_thread

        def run_later(redact: Callable[[], list[Piece]]) -> Future[list[Piece]]:
            def wait_and_redact() -> list[Piece]:
                may_redact.wait(30)
                return redact()

            return run(wait_and_redact)

        at.recorder.resources.run_on_thread = run_later  # type: ignore[method-assign]
        one = at.begin()
        one.record_end("request", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", TEXT)
        for number in range(THREAD_BYTES // len(SLOW)):
            one.record_data("response", SLOW, 3 + number)
        behind = [one.is_behind]
        one.record_data("response", SLOW, 50)
        behind.append(one.is_behind)
        may_redact.set()
        assert await one.wait_until_recorded()
        assert [*behind, one.is_behind] == [False, True, False]
        one.record_end("response", 98)
        one.record_close(99, "completed")
        assert await one.wait_until_recorded()
    assert TOKEN not in at.raw()


async def test_the_worker_does_not_wait_for_the_thread_while_a_paused_sender_uses_up_its_window(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In HTTP/2 a sender that is paused may still send what its window allows."""
    may_redact = threading.Event()
    waits: list[object] = []

    def wait_at_most(work: Sequence[Future[list[Piece]]]) -> None:
        waits.append(work)
        may_redact.set()

    monkeypatch.setattr("proxy.recording.message_recording.wait", wait_at_most)
    with open_recorder(directory) as at:
        run = at.recorder.resources.run_on_thread
        at.recorder.resources.run_on_thread = lambda redact: run(lambda: (may_redact.wait(30), redact())[1])  # type: ignore[method-assign]
        one = at.begin()
        one.record_end("request", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", TEXT)
        sent = 0
        while not one.is_behind:
            one.record_data("response", SLOW, 3)
            sent += len(SLOW)
        for number in range(WINDOW // len(WORDS)):
            one.record_data("response", WORDS, 4 + number)
        assert waits == []
        may_redact.set()
        one.record_end("response", 98)
        one.record_close(99, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    assert exchange.response.body.size == sent + WINDOW // len(WORDS) * len(WORDS)
    assert TOKEN not in at.raw()


async def test_a_fault_on_the_thread_lets_no_unredacted_byte_through(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(body: StreamedBody[Piece], pieces: Sequence[tuple[int, bytes]]) -> list[Piece]:
        raise RuntimeError(f"no luck with {SLOW!r}")

    monkeypatch.setattr(StreamedBody, "feed_together", fail)
    with open_recorder(directory) as at:
        await record_answer(at, [SLOW, SLOW, b"rest\n"])
    (exchange,) = at.exchanges().values()

    assert (exchange.outcome, exchange.is_truncated) == ("completed", True)
    assert b"token=" not in at.raw()
    assert "could not be redacted" in at.gaps()[0].reason


@pytest.mark.parametrize("encoding", [None, "gzip"])
async def test_a_small_whole_body_that_is_slow_is_redacted_on_the_thread(directory: Path, encoding: str | None) -> None:
    """Its 24 KB would take a quarter of a second, in which all other connections wait."""
    body = 3 * SLOW
    sent = gzip.compress(body) if encoding else body
    headers = (*TEXT, ("Content-Encoding", encoding)) if encoding else TEXT
    with open_recorder(directory) as at:
        one = at.begin(headers=headers, buffers_request=True)
        one.record_request(sent, 1)
        assert not one.is_recorded_now()
        assert await one.wait_until_recorded()
        one.record_response(2, 200, "OK", "HTTP/1.1", headers, sent, completes_exchange=True)
        assert not one.is_recorded_now()
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    for message in (exchange.request, exchange.response):
        data = decode_content(message.body.data, encoding)
        assert (len(data), TOKEN in data, message.body.truncated) == (len(body), False, False)


@pytest.mark.timeout(20)
async def test_a_slow_body_without_memory_for_the_thread_is_recorded_here(directory: Path) -> None:
    with open_recorder(directory) as at:
        held = at.recorder.resources.reserve_memory

        def leave_little(size: int) -> bool:
            return size <= INLINE_FEED and held(size)

        at.recorder.resources.reserve_memory = leave_little  # type: ignore[method-assign]
        await record_answer(at, [b"first ", WORDS, b"last\n"])
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    assert exchange.response.body.data == b"first " + WORDS + b"last\n"
