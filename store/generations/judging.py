"""Decide what becomes of an auto session, and write the next generation, one exchange at a time.

It is done in the store server, or in a helper process where one of the exchanges is too large for that (`store.large`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from calls.model import Call, Exchange
from store.generations.auto_session_file import Take
from store.generations.build import FLAWED, Flaws
from store.generations.fork_copies import new_id
from store.generations.names import LABEL, OF, following, newest
from store.ingest.batch_writer import DerivedExchange, Ingest
from store.large.jobs import JudgeResult
from store.large.summary import summary_if_large
from store.prices import cost
from store.query.exchanges import ExchangeQueries
from store.query.runs import Runs

BATCH: Final = 100
BATCH_SIZE: Final = 8 << 20
"""Exchanges that are stored together, and bytes of their bodies, but for the last one's."""


class Judge:
    """Reads and writes runs. Where it does not read large exchanges, `judged` raises `TooLarge` before it changes anything."""

    def __init__(
        self, ingest: Ingest, derive: Callable[[Exchange], Call], now: Callable[[], int], *, reads_large: bool
    ) -> None:
        self._ingest = ingest
        self._derive = derive
        self._now = now
        self._runs = Runs(ingest.database)
        self._recorded = ExchangeQueries(ingest.database, derive, reads_large=reads_large)

    async def judged(self, take: Take, path: Path, further: Callable[[], None] = lambda: None) -> JudgeResult:
        """The generation that it became, or why it became none. `further` is called as the work goes on."""
        shape = await self._runs.get(take.run, self._now())
        if shape is not None and take.becomes is not None and newest(take.run, shape) == take.becomes:
            await self._runs.delete(take.candidate)
            return JudgeResult(run=take.becomes)
        if take.report is not None and not take.report["live"] and not take.report["interrupted"]:
            return JudgeResult()
        for run in filter(None, (take.candidate, take.recording)):
            await self._recorded.check_run(run)
        why = await self._flaw(take, further)
        if take.candidate == take.run:
            await self._runs.patch(take.run, labels={FLAWED: why})
            return JudgeResult(why=why) if why else JudgeResult(run=take.run)
        name = None if shape is None else following(take.run, newest(take.run, shape))
        if why is None and name is not None:
            take = replace(take, becomes=name)
            take.write(path)
            await self._make(take, name, further)
            return JudgeResult(run=name)
        why = why or "there is no run here whose generation it could be, or no room in its name for one"
        await self._runs.patch(take.candidate, labels={OF: take.run, FLAWED: why})
        return JudgeResult(why=why)

    async def _flaw(self, take: Take, further: Callable[[], None]) -> str | None:
        """Why what was recorded live does not count; None where it does."""
        if why := _unfit(take):
            return why
        assert take.report is not None
        flaws = Flaws(await self._runs.gaps(take.candidate), self._derive)
        count = 0
        async for exchange in self._recorded.exchanges(take.candidate):
            await asyncio.to_thread(flaws.feed, exchange)
            count += 1
            further()
        if count < take.report["live"]:
            return f"of {take.report['live']} calls that went out {count} were recorded"
        return flaws.first()

    async def _make(self, take: Take, name: str, further: Callable[[], None]) -> None:
        """What answered and what is new, once more, as one run; then the one label that makes it count."""
        batch: list[Exchange] = []
        size = 0
        async for exchange in self._parts(take):
            batch.append(replace(exchange, id=new_id(exchange.id, name), run=name))
            size += len(exchange.request.body.data) + (len(exchange.response.body.data) if exchange.response else 0)
            if len(batch) == BATCH or size > BATCH_SIZE:
                await self._ingest.put(await asyncio.to_thread(self._kept, batch))
                batch, size = [], 0
                further()
        await self._ingest.put(await asyncio.to_thread(self._kept, batch))
        await self._runs.patch(name, labels={OF: take.run}, ended_at=self._now())
        await self._runs.patch(take.run, labels={LABEL: name, FLAWED: None})
        await self._runs.delete(take.candidate)

    async def _parts(self, take: Take) -> AsyncIterator[Exchange]:
        assert take.report is not None, "a take without a report is not whole"
        answered = frozenset(take.report.get("answered_by", ()))
        unused = not take.succeeded or take.report["allow_unused"]
        if take.recording:
            async for exchange in self._recorded.exchanges(take.recording):
                if unused or exchange.id in answered:
                    yield exchange
        async for exchange in self._recorded.exchanges(take.candidate):
            yield exchange

    def _kept(self, exchanges: list[Exchange]) -> list[DerivedExchange]:
        calls = ((each, self._derive(each)) for each in exchanges)
        return [
            DerivedExchange(each, call, ("take",), cost(each, call), summary=summary_if_large(each, call))
            for each, call in calls
        ]


def _unfit(take: Take) -> str | None:
    """Why it does not count, whatever was recorded."""
    if take.succeeded is False:
        return "the agent did not succeed"
    if take.report is None or take.report["interrupted"]:
        return "its proxy died in the middle"
    if take.report["missed"]:
        return f"{take.report['missed']} requests were missed"
    return None
