"""The recorder of a worker: begin to record exchanges, and record gaps and effects.

`exchange_recording` records one exchange.
"""

import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from calls.events import EffectBatch, RequestStarted
from calls.model import Headers
from calls.redaction.redactor import Redactor
from calls.uuid7 import Uuid7
from proxy.recording.exchange_recording import ExchangeRecording
from proxy.recording.request_start import Evidence, HeadMemo, RedactedStart
from proxy.recording.resources import Policy, RecordingResources
from proxy.recording.spool_outbox import Journal, RecordWriter, SpoolOutbox

BODY_LIMIT: Final = 32 << 20
HELD_LIMIT: Final = 256 << 20
IDENTITIES_KEPT: Final = 256
"""Number of cached identities (run, evidence and actor), redacted."""

RUNS_TIMED: Final = 4096
"""Maximum number of runs whose last start time is remembered."""


class Recorder:
    """The recorder of one worker. To be used on one event loop's thread only."""

    def __init__(
        self,
        spool: Journal,
        redactor: Redactor,
        *,
        body_limit: int = BODY_LIMIT,
        held_limit: int = HELD_LIMIT,
        on_failure: Policy = "gap",
        now: Callable[[], int],
        randbits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self.spool = spool
        self.call_soon = spool.call_soon
        """Schedules a call for the current group of writes to the spool."""

        self.redactor = redactor
        self.on_failure: Policy = on_failure
        self.outbox = SpoolOutbox(spool, now)
        self.resources = RecordingResources(
            redactor, self.outbox, body_limit=body_limit, held_limit=held_limit, on_failure=on_failure
        )
        self._now = now
        self._latest_start: dict[str, int] = {}
        """The start time of the last exchange of each run. Later exchanges get a later time even if the clock is set back,
        because start times order them."""

        self._new_id = Uuid7(now, randbits)
        self._redacted_identity = lru_cache(IDENTITIES_KEPT)(self._redact_identity)

    def begin(
        self,
        *,
        run: str,
        run_evidence: Evidence = (),
        step: int | None = None,
        actor: str | None = None,
        method: str,
        url: str,
        http_version: str,
        headers: Headers,
        buffers_request: bool = False,
        memo: HeadMemo | None = None,
    ) -> ExchangeRecording:
        """Begin to record an exchange when the head of its request arrives.

        `buffers_request`: the engine forwards nothing of the request before it is complete, so nothing needs to be recorded
        before that either. `memo`: that of this head, if it is the same as for earlier requests but for its Content-Length.
        """
        # First: what is compiled for the first of all texts takes longer than many a call.
        now = self._now()
        run = self.recording_run(run, url)
        start = memo.start if memo is not None else None
        if start is None or start.named_run != run:
            start = self._redact_start(run, run_evidence, actor, method, url, headers)
            if memo is not None:
                memo.start = start
        run, head = start.run, start.head
        started_at = self._next_start_time(run, now)
        if self.spool.fault_count != self.outbox.noted_faults:
            self.outbox.check_faults(run)
        # Only the Content-Length may differ from that of the memo's head.
        redacted, at = head.headers, head.length_at
        sent_headers = redacted if at is None else redacted[:at] + (headers[at],) + redacted[at + 1 :]  # noqa: RUF005 - three times as fast
        details = start.evidence, step, start.actor, head.redactions
        started = RequestStarted(
            self._new_id(started_at),
            run,
            started_at,
            method,
            head.url,
            http_version,
            sent_headers,
            *details,
        )
        writer = RecordWriter(self.outbox, run, started.id)
        recording = ExchangeRecording(started.id, self.resources, writer, started, head)
        if not buffers_request:
            recording.flush_request()
        return recording

    def _redact_start(
        self, run: str, evidence: Evidence, actor: str | None, method: str, url: str, headers: Headers
    ) -> RedactedStart:
        head = self.redactor.redact_request_head(method, url, headers)
        return RedactedStart(run, *self._redacted_identity(run, evidence, actor), head)

    def _next_start_time(self, run: str, now: int) -> int:
        """Return `now`, or just after the start of the run's last exchange if the clock was set back since."""
        # A plain dict needs less code than an OrderedDict, none of which is in the processor's caches after a pause.
        latest = self._latest_start
        before = latest.pop(run, 0)
        latest[run] = started_at = now if now > before else before + 1
        if len(latest) > RUNS_TIMED:
            for oldest in list(latest)[: RUNS_TIMED // 2]:
                del latest[oldest]
        return started_at

    def recording_run(self, run: str, _url: str | None) -> str:
        """Return the run into which an exchange or gap of `run` is recorded."""
        return run

    def _redact_identity(self, run: str, evidence: Evidence, actor: str | None) -> tuple[str, Evidence, str | None]:
        """Redact a run, its evidence and an actor. Cached, because a client mostly sends the same ones."""
        text = self.redactor.redact_text
        return text(run), tuple((source, text(value)) for source, value in evidence), actor and text(actor)

    def record_gap(self, run: str, reason: str, exchange: str | None = None) -> None:
        """Record that something was not recorded."""
        self.outbox.record_gap(
            self.redactor.redact_text(self.recording_run(run, None)), self.redactor.redact_text(reason), exchange
        )

    def record_effects(self, run: str, process: str, number: int, count: int, items: bytes) -> None:
        """Record effects that were redacted."""
        run = self.redactor.redact_text(self.recording_run(run, None))
        self.outbox.check_faults(run)
        batch = EffectBatch(run, self._new_id(), self._now(), self.redactor.redact_text(process), number, count, items)
        why = self.outbox.write(batch)
        if isinstance(why, str):
            self.record_gap(run, f"effects could not be recorded: {why}")
