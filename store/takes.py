"""Takes: what a run's agent does, once, while its doors are in mode `auto`; what went live counts when the take has ended well.

What went live is recorded as a run of its own, the candidate. If nothing of it failed or was cut, it and what answered from
the record become the run's next generation; else the run stays as it was. A take that we die over is settled again, with
the same result.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import batched
from pathlib import Path
from typing import Any

from calls.events import ReplayNoted
from calls.model import Call, Exchange
from store.bundle import Bundle, Entry
from store.copies import new_id
from store.database import Database, DatabaseError
from store.generation import FLAWED, flaw, kept
from store.ingest import Ingest, Kept
from store.lineage import LABEL, OF, following, newest
from store.prices import cost
from store.recorded import Recorded
from store.runs import Runs
from store.take import Take, digest

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a door may take to end a take. One that is gone takes longer."""

LOOK = 2.0
"""Seconds between two looks for takes that have ended by themselves."""

BATCH = 100


@dataclass(slots=True, kw_only=True)
class Takes:
    """The keeper's side: ends takes and lets them count."""

    place: Path
    database: Database
    ingest: Ingest
    """One of our own: a batch of the keeper's may be under way."""

    derive: Callable[[Exchange], Call]
    settled: Callable[[float], Awaitable[bool]]
    """Waits until all that was acknowledged is stored; whether it is."""

    now: Callable[[], int]
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
        """Have its door end it."""
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
            name, why = await self._judged(take, path)
            report = dict(take.report or await self._last_told(take))
            report.pop("answered_by", None)
            report["generation"] = {"run": name, "why": why}
            await self.ingest.put((), replays=[ReplayNoted(take.id, json.dumps(report).encode())])
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - one name of a small file
            return report

    async def _last_told(self, take: Take) -> Mapping[str, Any]:
        """What a door that died had told of a take, before that."""
        told = await Runs(self.database).replay(take.id)
        return json.loads(told) if told else {"id": take.id, "run": take.run}

    async def _judged(self, take: Take, path: Path) -> tuple[str | None, str | None]:
        """The generation that it became, and why it became none."""
        runs = Runs(self.database)
        shape = await runs.get(take.run, self.now())
        if shape is not None and take.becomes is not None and newest(take.run, shape) == take.becomes:
            await runs.delete(take.candidate)
            return take.becomes, None
        if take.report is not None and not take.report["live"] and not take.report["interrupted"]:
            return None, None
        new = await self._bundle(take.candidate)
        why = _unfit(take.report, new, succeeded=take.succeeded) or await asyncio.to_thread(flaw, new, self.derive)
        if take.candidate == take.run:
            await runs.patch(take.run, labels={FLAWED: why})
            return (None, why) if why else (take.run, None)
        name = None if shape is None else following(take.run, newest(take.run, shape))
        if why is None and name is not None:
            take = replace(take, becomes=name)
            take.write(path)
            await self._made(take, name, new, unused=not take.succeeded)
            return name, None
        why = why or "there is no run here whose generation it could be, or no room in its name for one"
        await runs.patch(take.candidate, labels={OF: take.run, FLAWED: why})
        return None, why

    async def _made(self, take: Take, name: str, new: Bundle, *, unused: bool) -> None:
        """What answered and what is new, once more, as one run; then the one label that makes it count."""
        assert take.report is not None, "a take without a report is not whole"
        old = await self._bundle(take.recording) if take.recording else Bundle(run={}, profiles="")
        answered = frozenset(take.report.get("answered_by", ()))
        both = [*kept(old, answered, unused=unused or take.report["allow_unused"]), *new.exchanges]
        for batch in batched(both, BATCH):
            copies = [replace(each, id=new_id(each.id, name), run=name) for each in batch]
            await self.ingest.put(await asyncio.to_thread(self._kept, copies))
        runs = Runs(self.database)
        await runs.patch(name, labels={OF: take.run}, ended_at=self.now())
        await runs.patch(take.run, labels={LABEL: name, FLAWED: None})
        await runs.delete(take.candidate)

    def _kept(self, exchanges: Sequence[Exchange]) -> list[Kept]:
        calls = ((each, self.derive(each)) for each in exchanges)
        return [Kept(each, call, ("take",), cost(each, call)) for each, call in calls]

    async def _bundle(self, run: str) -> Bundle:
        """What was recorded of a run."""
        found = [Entry(exchange=each) async for each in Recorded(self.database, self.derive).exchanges(run)]
        gaps = tuple(await Runs(self.database).gaps(run))
        return Bundle(run={"id": run}, profiles="", entries=tuple(found), gaps=gaps)


def _unfit(report: Mapping[str, Any] | None, new: Bundle, *, succeeded: bool | None) -> str | None:
    """Why what was recorded live does not count; None where it does."""
    if succeeded is False:
        return "the agent did not succeed"
    if report is None or report["interrupted"]:
        return "its proxy died in the middle"
    if report["missed"]:
        return f"{report['missed']} requests were missed"
    if len(new.entries) < report["live"]:
        return f"of {report['live']} calls that went out {len(new.entries)} were recorded"
    return None


async def _gone(path: Path) -> None:
    """Wait until a door has taken it away, or for so long as a living door may take."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while path.exists() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110, ASYNC240 - another process takes it
        await asyncio.sleep(0.02)
