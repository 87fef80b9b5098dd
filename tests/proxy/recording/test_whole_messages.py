"""A message that came whole goes to the spool as one; what comes out of it is what its parts would have come to."""

import asyncio
import errno
import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.events import Data, ExchangeClosed, MessageEnded, RequestStarted, ResponseStarted, decode_records
from calls.model import Exchange, Headers
from proxy.recording.exchange_recording import ExchangeRecording
from proxy.recording.message_recording import REDACT_INLINE_BYTES
from store.spool import Reader
from tests.calls.secrets import TOKENS
from tests.proxy.recording.open_recorder import JSON, OpenRecorder, open_recorder

FORM: Headers = (("Content-Type", "application/x-www-form-urlencoded"),)
ZIPPED: Headers = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
SECRET = TOKENS[2].encode()

bodies = st.sampled_from([b"", b'{"a": 1}', b"api_key=hunter2hunter2&a=1", b'{"key": "' + SECRET + b'"}', SECRET[:9]])
kinds = st.sampled_from([(), JSON, FORM, ZIPPED])


def record_whole(one: ExchangeRecording, asked: bytes, answered: bytes, headers: Headers) -> None:
    one.record_request(asked, 3)
    one.record_response(5, 200, "OK", "HTTP/1.1", headers, answered, completes_exchange=True)


def record_in_parts(one: ExchangeRecording, asked: bytes, answered: bytes, headers: Headers) -> None:
    if asked:
        one.record_data("request", asked, 3)
    one.record_end("request", 3)
    one.record_response_head(5, 200, "OK", "HTTP/1.1", headers)
    if answered:
        one.record_data("response", answered, 5)
    one.record_end("response", 5)
    one.record_close(5, "completed")


def payloads(at: OpenRecorder) -> list[list[type]]:
    """What lies together in the spool."""
    return [[type(record) for record in decode_records(payload)] for _, payload in Reader(at.directory).read()]


def alike(exchange: Exchange) -> Exchange:
    """What does not tell when and under which name it passed."""
    return replace(exchange, id="", started_at=0)


@given(bodies, bodies, kinds, kinds)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_record_whole_it_is_the_exchange_that_its_parts_are(
    tmp_path_factory: pytest.TempPathFactory, asked: bytes, answered: bytes, sent: Headers, got: Headers
) -> None:
    asked, answered = (
        gzip.compress(body, mtime=0) if headers is ZIPPED else body
        for body, headers in ((asked, sent), (answered, got))
    )
    with open_recorder(tmp_path_factory.mktemp("whole") / "spool") as at:
        for buffers_request in (False, True):
            record_in_parts(at.begin(headers=sent, buffers_request=buffers_request), asked, answered, got)
            record_whole(at.begin(headers=sent, buffers_request=buffers_request), asked, answered, got)
    first, *others = map(alike, at.exchanges().values())
    assert others == [first] * 3
    assert SECRET not in at.raw()


async def test_a_call_that_comes_whole_is_two_entries_of_the_spool(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin(buffers_request=True)
        one.record_request(b"{}", 1)
        assert one.is_recorded_now()
        assert payloads(at) == [[RequestStarted, Data, MessageEnded]], "the request is kept before it goes on"
        one.record_response(2, 200, "OK", "HTTP/1.1", JSON, b"[]", completes_exchange=True)
        assert await one.wait_until_recorded()
    assert payloads(at)[1:] == [[ResponseStarted, Data, MessageEnded, ExchangeClosed]]


async def test_what_comes_of_a_request_in_pieces_is_kept_when_it_is_whole(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin(buffers_request=True)
        one.record_data("request", b'{"a":', 1)
        one.record_data("request", b" 1}", 2)
        one.record_end("request", 3)
        assert one.is_recorded_now()
        assert payloads(at) == [[RequestStarted, Data, Data, MessageEnded]]
        one.record_close(4, "client_closed", "left")
    (exchange,) = at.exchanges().values()
    assert [chunk.at for chunk in exchange.request.body.chunks] == [1, 2]


@pytest.mark.parametrize("left", [True, False])
async def test_half_a_request_is_kept_when_more_will_not_come(directory: Path, left: bool) -> None:
    with open_recorder(directory) as at:
        one = at.begin(buffers_request=True)
        one.record_data("request", b"half of it;", 1)
        if left:
            one.record_close(2, "client_closed", "left")
        else:
            one.record_response_head(2, 413, "Too Large", "HTTP/1.1", ())
        assert await one.wait_until_recorded()
        assert [type(record) for record in at.records()][:2] == [RequestStarted, Data]


async def test_a_request_is_reported_before_anybody_waits_for_it(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin(buffers_request=True)
        assert await one.wait_until_recorded()
        assert payloads(at) == [[RequestStarted]]


async def test_a_response_waits_in_line_behind_a_request_that_is_still_worked_on(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin(headers=ZIPPED)
        one.record_data("request", gzip.compress(bytes(4 * REDACT_INLINE_BYTES)), 1)
        one.record_end("request", 2)
        told_early = 3, 413, "Too Large", "HTTP/1.1", JSON
        one.record_response_head(*told_early)
        one.record_data("response", b"[1, ", 4)
        one.record_data("response", b"2]\n", 5)
        one.record_end("response", 6)
        one.record_close(7, "completed")
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    assert exchange.response.body.data == b"[1, 2]\n"


async def test_a_large_body_with_a_secret_is_redacted_on_a_thread(directory: Path) -> None:
    body = b'{"text": "' + b"plain " * (REDACT_INLINE_BYTES // 6) + SECRET + b'"}'
    with open_recorder(directory) as at:
        one = at.begin(headers=JSON, buffers_request=True)
        one.record_data("request", body[:1000], 1)
        one.record_data("request", body[1000:], 2)
        one.record_end("request", 3)
        assert not one.is_recorded_now()
        assert at.spool.appended_count == 1, "all but the head waits for the thread"
        assert await one.wait_until_recorded()
        one.record_response(5, 200, "OK", "HTTP/1.1", JSON, body, completes_exchange=True)
        assert not one.is_recorded_now()
        assert await one.wait_until_recorded()
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    for message in (exchange.request, exchange.response):
        assert SECRET not in message.body.data
        assert (len(message.body.data), message.body.size, message.body.truncated) == (len(body), len(body), False)
    assert len(exchange.request.body.chunks) == 2


async def test_a_large_body_for_which_there_is_no_memory_is_redacted_at_once(directory: Path) -> None:
    body = SECRET + b"plain " * (REDACT_INLINE_BYTES // 6)
    with open_recorder(directory, held_limit=1000) as at:
        record_whole(at.begin(headers=JSON, buffers_request=True), body, body, JSON)
    (exchange,) = at.exchanges().values()
    assert exchange.response is not None
    for message in (exchange.request, exchange.response):
        assert SECRET not in message.body.data
        assert (len(message.body.data), message.body.truncated) == (len(body), False)


async def test_a_spool_with_a_failed_disk_gets_the_parts(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin(run="cut", buffers_request=True)
        one.record_request(b"kept", 1)
        assert await one.wait_until_recorded()
        at.disk.fails_with = errno.ENOSPC
        await at.begin(run="breaker").wait_until_recorded()
        assert at.spool.trouble is not None
        one.record_response(2, 200, "OK", "HTTP/1.1", (), b"lost", completes_exchange=True)
        await one.wait_until_recorded()
        at.disk.fails_with = None
        async with asyncio.timeout(60):
            while at.spool.trouble or not at.recorder.outbox.write_owed():  # noqa: ASYNC110 - the spool's thread tells nobody
                await asyncio.sleep(0.01)
    exchange = at.exchanges()[one.id]
    assert (exchange.request.body.data, exchange.is_truncated, exchange.outcome) == (b"kept", True, "completed")
    assert [gap.run for gap in at.gaps() if gap.exchange == one.id] == ["cut"]


async def test_a_secret_in_a_reason_is_replaced_each_time(directory: Path) -> None:
    with open_recorder(directory) as at:
        for reason in ("OK", TOKENS[2], "OK", TOKENS[2], TOKENS[2], "Fine"):
            one = at.begin(buffers_request=True)
            one.record_request(b"{}", 1)
            one.record_response(2, 200, reason, "HTTP/1.1", JSON, b"[]", completes_exchange=True)
    assert SECRET not in at.raw()
    reasons = [exchange.response.reason for exchange in at.exchanges().values() if exchange.response]
    assert [reason if reason in ("OK", "Fine") else "secret" for reason in reasons] == [
        "OK",
        "secret",
        "OK",
        "secret",
        "secret",
        "Fine",
    ]
