"""Requests are sent again exactly where OTLP/HTTP says so, after the pause that it says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from store.otlp import sender
from store.otlp.sender import OtlpSender, SpansRefused, TargetUnavailable, retry_after
from store.otlp.target import ExportTarget, traces_url
from tests.store.otlp.receiver import receiving

REQUEST: bytes = ExportTraceServiceRequest(resource_spans=[ResourceSpans()]).SerializeToString()


class Pauses(list[float]):
    """Stands in for sleep."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


async def test_a_request_is_gzipped_protobuf_with_the_headers_of_the_target() -> None:
    async with receiving() as receiver:
        otlp_sender = OtlpSender(ExportTarget(endpoint=receiver.url, headers={"Authorization": "Bearer x"}))
        await otlp_sender.send(REQUEST)
        await otlp_sender.close()
    (head,) = receiver.heads
    assert head.startswith("POST /v1/traces HTTP/1.1")
    assert "content-type: application/x-protobuf" in head.lower()
    assert "content-encoding: gzip" in head.lower()
    assert "authorization: bearer x" in head.lower()
    assert receiver.requests == [REQUEST]
    assert otlp_sender.state.trouble is None


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_target_that_cannot_take_it_is_tried_again(status: int) -> None:
    pauses = Pauses()
    async with receiving((status, {}, b""), (status, {"Retry-After": "7"}, b""), (status, {}, b"")) as receiver:
        otlp_sender = OtlpSender(ExportTarget(endpoint=receiver.url), sleep=pauses, jitter=lambda: 1.0)
        await otlp_sender.send(REQUEST)
        await otlp_sender.close()
    assert pauses == [1.0, 7.0, 4.0]
    assert receiver.requests == [REQUEST]
    assert (otlp_sender.state.retries, otlp_sender.state.requests, otlp_sender.state.trouble) == (3, 1, None)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 500])
async def test_a_refusal_is_reported_and_not_tried_again(status: int) -> None:
    async with receiving((status, {}, b"no such project")) as receiver:
        otlp_sender = OtlpSender(ExportTarget(endpoint=receiver.url), sleep=Pauses())
        with pytest.raises(SpansRefused, match=f"{status}: no such project"):
            await otlp_sender.send(REQUEST)
        await otlp_sender.close()
    assert receiver.tries == 1
    assert otlp_sender.state.refused == 1
    assert "no such project" not in str(otlp_sender.state.trouble), "it may quote spans, and /readyz needs no token"


async def test_spans_that_a_target_did_not_take_are_reported() -> None:
    partial = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="too old")
    )
    async with receiving((200, {}, partial.SerializeToString())) as receiver:
        otlp_sender = OtlpSender(ExportTarget(endpoint=receiver.url), sleep=Pauses())
        with pytest.raises(SpansRefused, match="did not take 2 spans: too old"):
            await otlp_sender.send(REQUEST)
        await otlp_sender.close()


@asynccontextmanager
async def endless_receiver(pause: float) -> AsyncIterator[str]:
    """A server whose answers do not end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"x" * 1000)
                await writer.drain()
                await asyncio.sleep(pause)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("pause", "failure", "words"),
    [(0, SpansRefused, "more than 1,048,576 bytes, so it is no"), (0.01, TargetUnavailable, "not answered completely")],
)
async def test_an_answer_without_an_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, pause: float, failure: type[Exception], words: str
) -> None:
    monkeypatch.setattr(sender, "SEND_TIMEOUT", 20.0 if failure is SpansRefused else 0.3)
    async with endless_receiver(pause) as url, asyncio.timeout(15):
        otlp_sender = OtlpSender(ExportTarget(endpoint=url), sleep=Pauses())
        with pytest.raises(failure, match=words):
            await otlp_sender.send(REQUEST, attempts=1)
        await otlp_sender.close()


async def test_a_target_that_is_down_is_given_up_after_the_allowed_attempts() -> None:
    pauses = Pauses()
    otlp_sender = OtlpSender(ExportTarget(endpoint="http://127.0.0.1:9"), sleep=pauses)
    with pytest.raises(TargetUnavailable, match=r"127\.0\.0\.1:9 does not answer"):
        await otlp_sender.send(REQUEST, attempts=3)
    await otlp_sender.close()
    assert len(pauses) == 2
    assert otlp_sender.state.trouble


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after({"retry-after": "120"}, 0) == 120
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50) == 10
    assert retry_after({"retry-after": "soon"}, 0) is None
    assert retry_after({}, 0) is None


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://a:6006", "http://a:6006/v1/traces"),
        ("http://a/v1/traces", "http://a/v1/traces"),
        ("https://a/api/public/otel/", "https://a/api/public/otel/v1/traces"),
    ],
)
def test_the_path_of_otlp_is_added_where_it_is_missing(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
