"""The recorder writes every event to the spool once, in order, and without secrets."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.events import ExchangeClosed, MessageEnded, RequestStarted
from calls.model import Chunk, Headers
from calls.redaction.redactor import RedactedHead, Redactor
from proxy.recording.recorder import Recorder
from proxy.recording.request_start import HeadMemo
from tests.calls.secrets import TOKENS
from tests.proxy.recording.open_recorder import JSON, URL, open_recorder

SSE: Headers = (("Content-Type", "text/event-stream"),)
TOKEN = TOKENS[2].encode()


async def test_an_exchange_comes_out_as_it_passed(directory: Path) -> None:
    with open_recorder(directory) as at:
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
    with open_recorder(directory) as at:
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
    with open_recorder(directory) as at:
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
    with open_recorder(directory) as at:
        for known in (memo, None):
            for length, run in (("5", "r"), ("17", "r"), ("4711", "other"), ("5", "other")):
                record(at.recorder, length, run, known)
    starts = [replace(one, id="", started_at=0) for one in at.records() if isinstance(one, RequestStarted)]
    assert len(starts) == 8
    assert starts[:4] == starts[4:]
    assert [dict(one.headers)["Content-Length"] for one in starts[:4]] == ["5", "17", "4711", "5"]
    assert not any(secret in str(starts) for secret in ("sk-secret", "sk-ant", "hunter2", "Ada"))


async def test_kept_means_written(directory: Path) -> None:
    with open_recorder(directory) as at:
        one = at.begin()
        one.record_data("request", b"{}", 1)
        one.record_end("request", 2)
        await one.wait_until_recorded()

        assert [type(record).__name__ for record in at.records()] == ["RequestStarted", "Data", "MessageEnded"]


@pytest.mark.parametrize("outcome", ["completed", "client_closed", "server_closed", "timed_out", "refused"])
async def test_an_exchange_is_closed_once_whatever_comes_after(directory: Path, outcome: str) -> None:
    with open_recorder(directory) as at:
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
    with open_recorder(directory) as at:
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
    with open_recorder(directory) as at:
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
    with open_recorder(tmp_path_factory.mktemp("any") / "spool", body_limit=400) as at:
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
