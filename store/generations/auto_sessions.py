"""End auto sessions: what an agent does once in mode `auto`.

Live exchanges are recorded into a run of their own, the candidate. If none of them failed or was cut off, the candidate and
the exchanges that answered from the record become the run's next generation; else the run does not change. If the store
server dies meanwhile, it settles the session again, with the same result.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from calls.events import ReplayReported
from calls.model import Call, Exchange
from store.database.connection import Database, DatabaseError, DatabaseUnavailable
from store.generations.auto_session_file import AutoSession, name_digest
from store.generations.build import FLAWED
from store.generations.judging import Judge
from store.generations.names import GENERATION_OF
from store.ingest.batch_writer import BatchWriter
from store.large.helper import Helper
from store.large.jobs import HelperJob, JudgeJob, JudgeResult
from store.query.exchange_reader import TooLarge
from store.query.runs import Runs

log = logging.getLogger(__name__)

END_TIMEOUT = 5.0
"""Seconds to wait for a worker to end a session, after which it counts as dead."""

POLL_INTERVAL = 2.0
"""Seconds between two searches for sessions that have ended by themselves."""


@dataclass(slots=True, kw_only=True)
class AutoSessionRuns:
    """The store server's side of auto sessions: ends them and lets them become generations."""

    directory: Path
    database: Database
    ingest: BatchWriter
    """A writer of its own, since the ingester may be writing a batch."""

    derive: Callable[[Exchange], Call]
    wait_until_settled: Callable[[float], Awaitable[bool]]
    """Waits so many seconds until everything acknowledged is stored; returns whether it is."""

    now: Callable[[], int]
    helper: Helper | None = None
    """The helper process for exchanges that are too large for this one; None where this process may load everything."""

    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Settle sessions that have ended by themselves, until cancelled."""
        while True:
            await self.settle_finished()
            await asyncio.sleep(POLL_INTERVAL)

    async def settle_finished(self) -> None:
        """Settle sessions that have ended by themselves; after a database error, the rest is settled the next time."""
        for path in sorted(self.directory.glob("*.done")):
            try:
                await self._settle(path)
            except DatabaseError as error:
                log.warning("an auto session cannot be settled yet: %s", error)
                return

    async def end(self, name: str, *, succeeded: bool | None) -> Mapping[str, Any] | None:
        """End a session by its full name and settle it. Return its report with the generation; None where there is no session.

        `succeeded` is whether the agent succeeded; None where it is not known.
        """
        prefix = f"{name_digest(name)}-*"
        for lasting in self.directory.glob(f"{prefix}.take"):
            if (session := AutoSession.read(lasting)) is not None:
                await self._request_end(replace(session, succeeded=succeeded), lasting)
        report = None
        for done in sorted(self.directory.glob(f"{prefix}.done")):
            report = await self._settle(done) or report
        return report

    async def _request_end(self, session: AutoSession, lasting: Path) -> None:
        """Ask the worker to end the session, and wait until it has."""
        over = lasting.with_suffix(".over")
        session.write(over)
        lasting.unlink(missing_ok=True)  # noqa: ASYNC240 - one name of a small file
        await _wait_until_gone(over)
        if over.exists():
            # The worker is gone: end it in its place.
            session.write(over.with_suffix(".done"))
            over.unlink(missing_ok=True)

    async def _settle(self, path: Path) -> Mapping[str, Any] | None:
        async with self._lock:
            if (take := AutoSession.read(path)) is None or not await self.wait_until_settled(END_TIMEOUT):
                return None
            judgement = await self._judge(take, path)
            report = dict(take.report or await self._last_report(take))
            report.pop("answered_by", None)
            report["generation"] = {"run": judgement.run, "why": judgement.why}
            writer = self.ingest.for_project(take.project)
            await writer.write_batch((), replays=[ReplayReported(take.id, json.dumps(report).encode())])
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - one name of a small file
            return report

    async def _last_report(self, session: AutoSession) -> Mapping[str, Any]:
        """Return the last report of a session whose worker died."""
        report = await Runs(self.database, session.project).replay(session.id)
        return json.loads(report) if report else {"id": session.id, "run": session.run}

    async def _judge(self, session: AutoSession, path: Path) -> JudgeResult:
        """Decide what becomes of the session; in the helper process if its exchanges are too large for this one."""
        writer = self.ingest.for_project(session.project)
        judge = Judge(writer, self.derive, self.now, reads_large=self.helper is None)
        try:
            return await judge.judge(session, path)
        except TooLarge:
            assert self.helper is not None
            reply = await self.helper.run(HelperJob(judge=JudgeJob(file=str(path))))
        if reply.is_unavailable:
            raise DatabaseUnavailable(reply.failed or "Postgres is not available.")
        if reply.judgement is None:
            # A second attempt would fail as well.
            await Runs(self.database, session.project).patch(
                session.candidate, labels={GENERATION_OF: session.run, FLAWED: reply.failed}
            )
        return reply.judgement or JudgeResult(why=reply.failed)


async def _wait_until_gone(path: Path) -> None:
    """Wait until the worker has removed the file, at most `END_TIMEOUT`."""
    deadline = asyncio.get_running_loop().time() + END_TIMEOUT
    while path.exists() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110, ASYNC240 - another process takes it
        await asyncio.sleep(0.02)
