"""Send encoded spans to one target, and try again as OTLP/HTTP demands (OTLP 1, "OTLP/HTTP Response" and "Throttling").

429, 502, 503, 504 and a failed connection are tried again after a growing pause, or after what `Retry-After` says. Any other
status of 400 and above means that the target refuses these spans: they are not sent again, and it is reported.
"""

import asyncio
import email.utils
import gzip
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import httpx2
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from store.otlp.target import ExportTarget

TIMEOUT: Final = httpx2.Timeout(30.0, connect=10.0)
RETRIED: Final = frozenset((429, 502, 503, 504))
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
LONGEST_RETRY_AFTER: Final = 3600.0
LONGEST_REASON: Final = 1000
"""Characters of a refusal that are reported."""

LONGEST_ANSWER: Final = 1 << 20
"""Bytes that are read of an answer."""

SEND_TIMEOUT: Final = 60.0
"""Seconds that a request and its answer may take."""


class SendFailure(Exception):
    """Spans were not sent; the message says why."""


class TargetUnavailable(SendFailure):
    """The target cannot take spans at the moment; `pause` is what it asks to wait."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


class SpansRefused(SendFailure):
    """The target refuses these spans, and would refuse them again."""


@dataclass(slots=True, kw_only=True)
class ExportState:
    """How the export to a target is doing."""

    endpoint: str
    trouble: str | None = None
    requests: int = 0
    retries: int = 0
    refused: int = 0
    """Requests that the target refused."""

    runs: int = 0
    lost: int = 0
    """How often entries of the feed had been deleted before they were read."""


class OtlpSender:
    """Sends requests to a target, one after another."""

    def __init__(
        self,
        target: ExportTarget,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._target = target
        # No proxy of the environment: it may be Playhead itself.
        self._client = httpx2.AsyncClient(timeout=TIMEOUT, trust_env=False)
        self._sleep = sleep
        self._jitter = jitter
        self.state = ExportState(endpoint=target.host)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(self, request: bytes, attempts: int | None = None) -> None:
        """Send a request, as often as needed or as allowed. Raises SendFailure."""
        body = await asyncio.to_thread(gzip.compress, request, 6)
        failed = 0
        while True:
            try:
                await self._send_once(body)
                self.state.trouble = None
                self.state.requests += 1
                return
            except TargetUnavailable as error:
                failed += 1
                self.state.trouble = str(error)
                if failed == attempts:
                    raise
                self.state.retries += 1
                await self._sleep(self._pause(failed) if error.pause is None else min(error.pause, LONGEST_RETRY_AFTER))
            except SpansRefused:
                # What a target answers may quote spans, and everybody can read `/readyz`.
                self.state.trouble = f"{self._target.host} refuses spans; the log of the store server says why"
                self.state.refused += 1
                raise

    def _pause(self, failed: int) -> float:
        """Return the seconds to wait: twice as long each time, up to a minute, and not the same for all senders."""
        longest: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failed - 1, 16))
        return longest * (0.5 + self._jitter() / 2)

    async def _send_once(self, body: bytes) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                answer, content = await self._exchange(body)
        except httpx2.HTTPError as error:
            raise TargetUnavailable(
                f"{self._target.host} does not answer: {str(error) or type(error).__name__}"
            ) from error
        except TimeoutError:
            raise TargetUnavailable(f"{self._target.host} has not answered completely for {SEND_TIMEOUT:g} s") from None
        if answer.status_code in RETRIED:
            raise TargetUnavailable(
                f"{self._target.host} answers {answer.status_code}", retry_after(answer.headers, time.time())
            )
        if not answer.is_success:
            raise SpansRefused(
                f"{self._target.host} refuses spans with {answer.status_code}: {_refusal_text(answer, content)}"
            )
        if len(content) > LONGEST_ANSWER:
            raise SpansRefused(
                f"{self._target.host} answers with more than {LONGEST_ANSWER:,} bytes, so it is no receiver of OTLP:"
                " correct the `endpoint` of this [[export]]"
            )
        if reason := _partial_refusal(content):
            raise SpansRefused(f"{self._target.host} {reason}")

    async def _exchange(self, body: bytes) -> tuple[httpx2.Response, bytes]:
        """Send the request once; return the response and its body, or the beginning of one that is too long."""
        headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip", "accept-encoding": "identity"}
        headers |= self._target.headers
        content = b""
        async with self._client.stream("POST", self._target.url, content=body, headers=headers) as answer:
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > LONGEST_ANSWER:
                    break
        return answer, content


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that `Retry-After` asks for (RFC 9110, 10.2.3): a number, or a date."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None


def _refusal_text(answer: httpx2.Response, content: bytes) -> str:
    text = content.decode("utf-8", "replace")[:LONGEST_REASON].strip()
    return text if text.isprintable() and text else answer.reason_phrase or "no reason"


def _partial_refusal(content: bytes) -> str | None:
    """Return what a response of 200 says of spans that were not taken."""
    try:
        partial = ExportTraceServiceResponse.FromString(content).partial_success
    except DecodeError:
        return None  # some servers answer with a text
    return f"did not take {partial.rejected_spans} spans: {partial.error_message}" if partial.rejected_spans else None
