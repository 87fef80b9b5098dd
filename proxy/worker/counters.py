"""Count connections and requests, and write the counts beside the spool for the store server's `/metrics`."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

from calls.model import Request
from proxy.wire.engine import Answerer
from replay.answer import Answer, Duplex
from store.worker_counters import write_counters

WRITE_INTERVAL: Final = 1.0
"""Seconds between two writes."""


class CountingAnswerer:
    """An answerer that counts the answers of another one by their kind."""

    def __init__(self, answerer: Answerer, counts: Counter[str]) -> None:
        self._answerer = answerer
        self._counts = counts
        self.note_passed_request = answerer.note_passed_request
        self.note_unseen_request = answerer.note_unseen_request
        self.note_refused_connection = answerer.note_refused_connection
        self.recorded_protocols = answerer.recorded_protocols
        self.loaded_authorities = answerer.loaded_authorities
        self.expect_run = answerer.expect_run
        self.recorded_authorities = answerer.recorded_authorities
        self.rehearsal = answerer.rehearsal

    async def answer(self, request: Request, *, run: str | None, owner: str, actor: str | None = None) -> Answer | None:
        """Return the other answerer's answer, and count it."""
        answer = await self._answerer.answer(request, run=run, owner=owner, actor=actor)
        self._counts[f"answers/{_answer_kind(answer)}"] += 1
        return answer

    async def open_duplex(
        self, request: Request, *, run: str | None, owner: str, actor: str | None = None
    ) -> Duplex | None:
        """Return what may answer a request before it ends, and count its answer."""
        duplex = await self._answerer.open_duplex(request, run=run, owner=owner, actor=actor)
        return None if duplex is None else _CountedDuplex(duplex, self._counts)


class _CountedDuplex:
    """A duplex call whose answer is counted."""

    def __init__(self, duplex: Duplex, counts: Counter[str]) -> None:
        self._duplex = duplex
        self._counts = counts
        self.end = duplex.end

    @property
    def has_diverged(self) -> bool:
        """Whether the request is no longer the recorded one."""
        return self._duplex.has_diverged

    def receive(self, data: bytes) -> Answer | None:
        """Take more of the request, and count the answer when it begins."""
        answer = self._duplex.receive(data)
        if answer is not None:
            self._counts[f"answers/{_answer_kind(answer)}"] += 1
        return answer


def _answer_kind(answer: Answer | None) -> str:
    """Return the kind that the answer's Playhead field names. A connection that only breaks off has no such field."""
    if answer is None:
        return "live"
    if answer.headers and answer.headers[-1][0] == "Playhead":  # where a replay puts it
        return answer.headers[-1][1].partition(";")[0]
    marks = (value for name, value in reversed(answer.headers) if name == "Playhead")
    return next(marks, "replayed").partition(";")[0]


async def keep_writing_counts(counts: Counter[str], spool: Path) -> None:
    """Write the counts once a second if they have changed, until cancelled."""
    written_counts: Counter[str] = Counter()
    while True:
        await asyncio.sleep(WRITE_INTERVAL)
        if counts != written_counts:
            written_counts = counts.copy()
            await asyncio.to_thread(write_counts, written_counts, spool)


def write_counts(counts: Counter[str], spool: Path) -> None:
    """Write the counts now."""
    try:
        write_counters(spool, counts)
    except OSError:
        pass  # such as a full disk, which the recorder reports; the next write has all counts
