"""Count connections and requests beside the spool, each second, for the store server's `/metrics`."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

from calls.model import Request
from proxy.wire.engine import Answerer
from replay.answer import Answer
from store.worker_counters import write

EACH: Final = 1.0
"""Seconds between two notes."""


class CountingAnswerer:
    """An answerer whose answers are counted by what they are."""

    def __init__(self, answerer: Answerer, counts: Counter[str]) -> None:
        self._answerer = answerer
        self._counts = counts
        self.note_passed_request = answerer.note_passed_request
        self.note_unseen_request = answerer.note_unseen_request
        self.note_refused_connection = answerer.note_refused_connection
        self.recorded_protocols = answerer.recorded_protocols

    async def answer(self, request: Request, *, run: str | None, owner: str, actor: str | None = None) -> Answer | None:
        """The other's answer."""
        answer = await self._answerer.answer(request, run=run, owner=owner, actor=actor)
        self._counts[f"answers/{_standing(answer)}"] += 1
        return answer


def _standing(answer: Answer | None) -> str:
    """What an answer says that it is. Where a connection only breaks off, as it was recorded, nothing is said."""
    if answer is None:
        return "live"
    if answer.headers and answer.headers[-1][0] == "Playhead":  # where a replay puts it
        return answer.headers[-1][1].partition(";")[0]
    marks = (value for name, value in reversed(answer.headers) if name == "Playhead")
    return next(marks, "replayed").partition(";")[0]


async def keep(counts: Counter[str], spool: Path) -> None:
    """Note what has changed, until cancelled."""
    noted: Counter[str] = Counter()
    while True:
        await asyncio.sleep(EACH)
        if counts != noted:
            noted = counts.copy()
            await asyncio.to_thread(note, noted, spool)


def note(counts: Counter[str], spool: Path) -> None:
    """Note it now."""
    try:
        write(spool, counts)
    except OSError:
        pass  # a full disk: who records says so already, and the next note is as good
