"""Requests are sent again exactly where OTLP/HTTP says so, after the pause that it says."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

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
        sender = OtlpSender(ExportTarget(endpoint=receiver.url, headers={"Authorization": "Bearer x"}))
        await sender.send(REQUEST)
        await sender.close()
    (head,) = receiver.heads
    assert head.startswith("POST /v1/traces HTTP/1.1")
    assert "content-type: application/x-protobuf" in head.lower()
    assert "content-encoding: gzip" in head.lower()
    assert "authorization: bearer x" in head.lower()
    assert receiver.requests == [REQUEST]
    assert sender.state.trouble is None


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_target_that_cannot_take_it_is_tried_again(status: int) -> None:
    pauses = Pauses()
    async with receiving((status, {}, b""), (status, {"Retry-After": "7"}, b""), (status, {}, b"")) as receiver:
        sender = OtlpSender(ExportTarget(endpoint=receiver.url), sleep=pauses, jitter=lambda: 1.0)
        await sender.send(REQUEST)
        await sender.close()
    assert pauses == [1.0, 7.0, 4.0]
    assert receiver.requests == [REQUEST]
    assert (sender.state.retries, sender.state.requests, sender.state.trouble) == (3, 1, None)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 500])
async def test_a_refusal_is_reported_and_not_tried_again(status: int) -> None:
    async with receiving((status, {}, b"no such project")) as receiver:
        sender = OtlpSender(ExportTarget(endpoint=receiver.url), sleep=Pauses())
        with pytest.raises(SpansRefused, match=f"{status}: no such project"):
            await sender.send(REQUEST)
        await sender.close()
    assert receiver.tries == 1
    assert sender.state.refused == 1
    assert "no such project" not in str(sender.state.trouble), "it may quote spans, and /readyz needs no token"


async def test_spans_that_a_target_did_not_take_are_reported() -> None:
    partial = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="too old")
    )
    async with receiving((200, {}, partial.SerializeToString())) as receiver:
        sender = OtlpSender(ExportTarget(endpoint=receiver.url), sleep=Pauses())
        with pytest.raises(SpansRefused, match="did not take 2 spans: too old"):
            await sender.send(REQUEST)
        await sender.close()


async def test_a_target_that_is_down_is_given_up_after_the_allowed_attempts() -> None:
    pauses = Pauses()
    sender = OtlpSender(ExportTarget(endpoint="http://127.0.0.1:9"), sleep=pauses)
    with pytest.raises(TargetUnavailable, match=r"127\.0\.0\.1:9 does not answer"):
        await sender.send(REQUEST, attempts=3)
    await sender.close()
    assert len(pauses) == 2
    assert sender.state.trouble


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
