"""Decide whether an auto session becomes the run's next generation, and write that, one exchange at a time.

This runs in the store server, or in the helper process if one of the exchanges is too large for it (`store.large`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from calls.model import Call, Exchange
from store.generations.auto_session_file import AutoSession
from store.generations.build import FLAWED, FlawFinder
from store.generations.fork_copies import copied_id
from store.generations.names import GENERATION_LABEL, GENERATION_OF, newest_generation, next_generation
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.large.jobs import JudgeResult
from store.large.summary import encode_summary_if_large
from store.pricing.prices import call_cost
from store.query.call_reader import CallReader
from store.query.runs import Runs

BATCH: Final = 100
BATCH_SIZE: Final = 8 << 20
"""Bytes of bodies that are stored together; only the last body of a batch may exceed it."""


class Judge:
    """Judges auto sessions. Without `reads_large`, `judge` raises `TooLarge` for large exchanges before it changes anything."""

    def __init__(
        self, ingest: BatchWriter, derive: Callable[[Exchange], Call], now: Callable[[], int], *, reads_large: bool
    ) -> None:
        self._ingest = ingest
        self._derive = derive
        self._now = now
        self._runs = Runs(ingest.database, ingest.project)
        self._recorded = CallReader(ingest.database, derive, ingest.project, reads_large=reads_large)

    async def judge(
        self, session: AutoSession, path: Path, on_progress: Callable[[], None] = lambda: None
    ) -> JudgeResult:
        """Return the generation that the session became, or why there is none. `on_progress` is called repeatedly."""
        shape = await self._runs.get(session.run, self._now())
        if (
            shape is not None
            and session.becomes is not None
            and newest_generation(session.run, shape) == session.becomes
        ):
            await self._runs.delete(session.candidate)
            return JudgeResult(run=session.becomes)
        if session.report is not None and not session.report["live"] and not session.report["interrupted"]:
            return JudgeResult()
        for run in filter(None, (session.candidate, session.recording)):
            await self._recorded.check_run(run)
        why = await self._flaw(session, on_progress)
        if session.candidate == session.run:
            await self._runs.patch(session.run, labels={FLAWED: why})
            return JudgeResult(why=why) if why else JudgeResult(run=session.run)
        name = None if shape is None else next_generation(session.run, newest_generation(session.run, shape))
        if why is None and name is not None:
            session = msgspec.structs.replace(session, becomes=name)
            session.write(path)
            await self._write_generation(session, name, on_progress)
            return JudgeResult(run=name)
        why = why or "its run is not stored here, or the run's id is too long for that of a generation"
        await self._runs.patch(session.candidate, labels={GENERATION_OF: session.run, FLAWED: why})
        return JudgeResult(why=why)

    async def _flaw(self, session: AutoSession, on_progress: Callable[[], None]) -> str | None:
        """Return why the session cannot become a generation; None where it can."""
        if why := _session_flaw(session):
            return why
        assert session.report is not None
        flaws = FlawFinder(await self._runs.gaps(session.candidate), self._derive)
        count = 0
        async for exchange in self._recorded.exchanges(session.candidate):
            await asyncio.to_thread(flaws.feed, exchange)
            count += 1
            on_progress()
        if count < session.report["live"]:
            return f"only {count} of {session.report['live']} calls that went out were recorded"
        return flaws.first_flaw()

    async def _write_generation(self, session: AutoSession, name: str, on_progress: Callable[[], None]) -> None:
        """Copy the exchanges that answered and the new ones into one run; then set the label that makes it the newest."""
        batch: list[Exchange] = []
        size = 0
        async for exchange in self._generation_exchanges(session):
            batch.append(replace(exchange, id=copied_id(exchange.id, name), run=name))
            size += len(exchange.request.body.data) + (len(exchange.response.body.data) if exchange.response else 0)
            if len(batch) == BATCH or size > BATCH_SIZE:
                await self._ingest.write_batch(await asyncio.to_thread(self._derive_batch, batch))
                batch, size = [], 0
                on_progress()
        await self._ingest.write_batch(await asyncio.to_thread(self._derive_batch, batch))
        await self._runs.patch(name, labels={GENERATION_OF: session.run}, ended_at=self._now())
        await self._runs.patch(session.run, labels={GENERATION_LABEL: name, FLAWED: None})
        await self._runs.delete(session.candidate)

    async def _generation_exchanges(self, session: AutoSession) -> AsyncIterator[Exchange]:
        assert session.report is not None, "a take without a report is not whole"
        answered = frozenset(session.report.get("answered_by", ()))
        unused = not session.succeeded or session.report["allow_unused"]
        if session.recording:
            async for exchange in self._recorded.exchanges(session.recording):
                if unused or exchange.id in answered:
                    yield exchange
        async for exchange in self._recorded.exchanges(session.candidate):
            yield exchange

    def _derive_batch(self, exchanges: list[Exchange]) -> list[DerivedExchange]:
        calls = ((each, self._derive(each)) for each in exchanges)
        return [
            DerivedExchange(each, call, ("take",), call_cost(each, call), summary=encode_summary_if_large(each, call))
            for each, call in calls
        ]


def _session_flaw(session: AutoSession) -> str | None:
    """Return why the session's report keeps it from becoming a generation; None where it does not."""
    if session.succeeded is False:
        return "the agent did not succeed"
    if session.report is None or session.report["interrupted"]:
        return "its proxy worker died before the session ended"
    if session.report["missed"]:
        return f"{session.report['missed']} requests had no recorded answer"
    return None
