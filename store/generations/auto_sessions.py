"""Auto sessions: what an agent does once in mode `auto`. What went live counts when the session has ended well.

What went live is recorded as a run of its own, the candidate. If nothing of it failed or was cut, it and what answered from
the record become the run's next generation; else the run stays as it was. A take that we die over is settled again, with
the same result.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calls.events import ReplayNoted
from calls.model import Call, Exchange
from store.database.connection import Database, DatabaseError, Unavailable
from store.generations.auto_session_file import Take, digest
from store.generations.build import FLAWED
from store.generations.judging import Judge
from store.generations.names import OF
from store.ingest.batch_writer import Ingest
from store.large.helper import Helper
from store.large.jobs import HelperJob, JudgeJob, JudgeResult
from store.query.exchanges import TooLarge
from store.query.runs import Runs

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a worker may take to end a take. One that is gone takes longer."""

LOOK = 2.0
"""Seconds between two looks for takes that have ended by themselves."""


@dataclass(slots=True, kw_only=True)
class AutoSessionRuns:
    """The store server's side: ends takes and lets them count."""

    place: Path
    database: Database
    ingest: Ingest
    """One of our own: a batch of the store server's may be under way."""

    derive: Callable[[Exchange], Call]
    settled: Callable[[float], Awaitable[bool]]
    """Waits until all that was acknowledged is stored; whether it is."""

    now: Callable[[], int]
    helper: Helper | None = None
    """The process that reads what is too large for this one; none where this one may open everything."""

    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Settle what has ended by itself, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        """Settle what has ended by itself. What cannot be now, is later."""
        for path in sorted(self.place.glob("*.done")):
            try:
                await self._settle(path)
            except DatabaseError as error:
                log.warning("a take is not settled yet: %s", error)
                return

    async def end(self, name: str, *, succeeded: bool | None) -> Mapping[str, Any] | None:
        """End a take and let it count if it is whole. Its report with what became of it; None where there is no take.
        `succeeded`: whether the agent came to its good end; None where nobody knows."""
        named = f"{digest(name)}-*"
        for lasting in self.place.glob(f"{named}.take"):
            if (take := Take.read(lasting)) is not None:
                await self._over(replace(take, succeeded=succeeded), lasting)
        told = None
        for done in sorted(self.place.glob(f"{named}.done")):
            told = await self._settle(done) or told
        return told

    async def _over(self, take: Take, lasting: Path) -> None:
        """Have its worker end it."""
        over = lasting.with_suffix(".over")
        take.write(over)
        lasting.unlink(missing_ok=True)  # noqa: ASYNC240 - one name of a small file
        await _gone(over)
        if over.exists():
            # Nobody is there to end it.
            take.write(over.with_suffix(".done"))
            over.unlink(missing_ok=True)

    async def _settle(self, path: Path) -> Mapping[str, Any] | None:
        async with self._one:
            if (take := Take.read(path)) is None or not await self.settled(PATIENCE):
                return None
            judgement = await self._judged(take, path)
            report = dict(take.report or await self._last_told(take))
            report.pop("answered_by", None)
            report["generation"] = {"run": judgement.run, "why": judgement.why}
            await self.ingest.put((), replays=[ReplayNoted(take.id, json.dumps(report).encode())])
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - one name of a small file
            return report

    async def _last_told(self, take: Take) -> Mapping[str, Any]:
        """What a worker that died had told of a take, before that."""
        told = await Runs(self.database).replay(take.id)
        return json.loads(told) if told else {"id": take.id, "run": take.run}

    async def _judged(self, take: Take, path: Path) -> JudgeResult:
        """What it became; where exchanges of it are too large for this process, a helper process finds out."""
        judge = Judge(self.ingest, self.derive, self.now, reads_large=self.helper is None)
        try:
            return await judge.judged(take, path)
        except TooLarge:
            assert self.helper is not None
            reply = await self.helper.run(HelperJob(judge=JudgeJob(file=str(path))))
        if reply.is_unavailable:
            raise Unavailable(reply.failed or "Postgres is away.")
        if reply.judgement is None:
            # Tried again, it would fail again.
            await Runs(self.database).patch(take.candidate, labels={OF: take.run, FLAWED: reply.failed})
        return reply.judgement or JudgeResult(why=reply.failed)


async def _gone(path: Path) -> None:
    """Wait until a worker has taken it away, or for so long as a living worker may take."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while path.exists() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110, ASYNC240 - another process takes it
        await asyncio.sleep(0.02)
