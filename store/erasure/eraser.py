"""Erase runs or calls, and report where something was."""

import asyncio
import datetime as dt
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from calls.model import Call, Exchange
from store.database.conflicts import retry_conflicts
from store.database.connection import Database
from store.database.object_forms import ObjectStorageDown
from store.erasure.disk_traces import clear_shared_files, remove_disk_traces, rewrite_erased_days
from store.erasure.erase_rows import ErasedRows, erase_exchanges, erase_replays, erase_run, find_replays
from store.erasure.files import NO_FILES, ErasedFiles, erase_files, quoting_files
from store.erasure.matching import BEGINNING, BodyMatch, SearchStep, find_calls
from store.erasure.mentions import is_about, is_quoting
from store.ingest.partitions import first_id_of
from store.query.call_reader import CallReader
from store.retention.partition_swap import erased_days
from store.search.index import TextIndex

SHORTEST_QUOTE: Final = 4
"""Characters of a text from which on it is looked for in the reports of replays. Shorter ones are in nearly all."""


class Quotes(NamedTuple):
    """Reports of replays that quote a text."""

    files: Sequence[Path]
    replays: Sequence[str]


class ErasureReport(NamedTuple):
    """What was erased, and where it was."""

    runs: Sequence[str]
    exchanges: Sequence[str]
    rows: Mapping[str, int]
    """Deleted rows by table."""

    files: ErasedFiles
    objects: int
    """Objects that were deleted from object storage."""

    remains: Sequence[str]
    """What may still have something, a sentence each."""

    looked_at: int = 0
    """Exchanges that a search has looked into."""

    next: "SearchPlace | None" = None
    """Where a search goes on."""

    def with_remains(self, remains: Sequence[str]) -> "ErasureReport":
        """Return the same with more that may still have something."""
        return self._replace(remains=[*self.remains, *remains])

    def with_quotes(self, quotes: Quotes) -> "ErasureReport":
        """Return the same with reports of replays."""
        if not quotes.replays and not quotes.files:
            return self
        return self._replace(
            rows={**self.rows, "replays": self.rows.get("replays", 0) + len(quotes.replays)},
            files=self.files._replace(replay_files=self.files.replay_files + len(quotes.files)),
        )


class SearchPlace(NamedTuple):
    """A place in an erasure by content: after an exchange, while it searches; then after a day, while it writes files anew."""

    exchange: uuid.UUID | None = None
    day: dt.date | None = None

    def __str__(self) -> str:
        return f"day:{self.day}" if self.day else str(self.exchange or BEGINNING)


def parse_place(text: str) -> SearchPlace:
    """Read a place as `str` writes it. Raises ValueError."""
    if text.startswith("day:"):
        return SearchPlace(day=dt.date.fromisoformat(text.removeprefix("day:")))
    return SearchPlace(exchange=uuid.UUID(text))


NOTHING_ERASED: Final = ErasureReport([], [], {}, NO_FILES, 0, [])


def unreadable_sentences(step: SearchStep) -> list[str]:
    """Say which exchanges a search could not look into."""
    if not step.unreadable:
        return []
    name, reason = next(iter(step.unreadable.items()))
    count = f"{len(step.unreadable)} exchanges were" if len(step.unreadable) > 1 else "1 exchange was"
    return [f"{count} not looked into, such as {name}: {reason}; erase it with --call {name} if it may have it"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eraser:
    """Erases from one project. `data` is the data directory; None where files are not this process's matter."""

    database: Database
    derive: Callable[[Exchange], Call]
    project: str
    data: Path | None
    now: Callable[[], int]

    async def erase_run(self, run: str) -> ErasureReport | None:
        """Erase a run; None if there is none."""
        queries = CallReader(self.database, self.derive, self.project)
        files, replays = await self._erase_files({run}, await queries.exchange_ids(run))
        found = await retry_conflicts(lambda: erase_run(self.database, self.project, run, self.now()))
        if found is None:
            return None
        report = await self._report(found, files, replays)
        return report.with_remains(await remove_disk_traces(self.database))

    async def erase_exchanges(self, exchanges: Mapping[str, Sequence[str]]) -> ErasureReport | None:
        """Erase exchanges, by their runs; None if there is none of them."""
        report = await self._erase_rows(exchanges)
        return report and report.with_remains(await remove_disk_traces(self.database))

    async def erase_matching(self, match: BodyMatch, place: SearchPlace, seconds: float) -> ErasureReport:
        """Erase some of what a match finds, for about so many seconds; the report says where to go on.

        First rows and files go, then the database's files are written anew. If this ends at any point, the same search begun anew
        finds what is left, and what is to be written anew is noted in the database.
        """
        if place.day is not None:
            remains, day = await rewrite_erased_days(self.database, place.day, seconds)
            if day is None:
                remains += await clear_shared_files(self.database)
            return NOTHING_ERASED._replace(remains=remains, next=SearchPlace(day=day) if day else None)
        step = await self.find(match, place, seconds)
        report = (await self._erase_rows(step.found) if step.found else None) or NOTHING_ERASED
        quotes = await self.find_quotes(match, place)
        for file in quotes.files:
            file.unlink(missing_ok=True)
        if quotes.replays:
            await erase_replays(self.database, self.project, quotes.replays)
            report = report.with_remains(await clear_shared_files(self.database))
        report = report.with_quotes(quotes)
        after: SearchPlace | None = SearchPlace(exchange=step.next)
        if step.next is None:
            after = SearchPlace(day=dt.date.min) if await erased_days(self.database) else None
        return report._replace(looked_at=step.looked_at, next=after).with_remains(unreadable_sentences(step))

    async def find(self, match: BodyMatch, place: SearchPlace, seconds: float) -> SearchStep:
        """Find exchanges for about so many seconds."""
        return await find_calls(self.database, self.derive, self.project, match, place.exchange or BEGINNING, seconds)

    async def find_quotes(self, match: BodyMatch, place: SearchPlace) -> Quotes:
        """Find the reports of replays that quote the value of a match: a request that was missed is in no exchange. At the first place only."""
        if place.exchange is not None or len(match.value) < SHORTEST_QUOTE:
            return Quotes([], [])
        files = (
            [] if self.data is None else await asyncio.to_thread(quoting_files, self.data, self.project, match.value)
        )
        return Quotes(
            files, await find_replays(self.database, self.project, lambda report: is_quoting(report, match.value))
        )

    async def _erase_rows(self, exchanges: Mapping[str, Sequence[str]]) -> ErasureReport | None:
        """Erase from files and tables; what the database's files have of it stays. None if there is none of them."""
        files, replays = await self._erase_files(exchanges, {one for ids in exchanges.values() for one in ids})
        found = ErasedRows()
        for run, ids in exchanges.items():
            erase = partial(erase_exchanges, self.database, self.project, run, list(map(uuid.UUID, ids)), self.now())
            erased = await retry_conflicts(erase)
            if erased is not None:
                found.add(erased)
                await self._index_again(run, erased)
        return await self._report(found, files, replays) if found.runs else None

    async def _index_again(self, run: str, erased: ErasedRows) -> None:
        """Index the remaining calls of the days: a text that an erased call had may be in them, too."""
        index = TextIndex(self.database, self.derive)
        for day in sorted(erased.days):
            last = uuid.UUID(int=first_id_of(day).int + (86_400_000 << 80))
            async with self.database.connection() as connection:
                rows = await connection.fetch(CALLS, self.project, run, first_id_of(day), last)
            await retry_conflicts(partial(index.index_calls, self.project, [str(row["id"]) for row in rows]))

    async def _erase_files(self, runs: Collection[str], exchanges: Collection[str]) -> tuple[ErasedFiles, int]:
        """Erase from files, and the reports of replays; return how many reports. Before the rows, by which all of it is found again."""
        files = NO_FILES
        if self.data is not None:
            files = await erase_files(self.data, self.project, {*runs, *exchanges})
        replays = await find_replays(self.database, self.project, lambda report: is_about(report, runs))
        return files, await erase_replays(self.database, self.project, replays)

    async def _report(self, erased_rows: ErasedRows, files: ErasedFiles, replays: int) -> ErasureReport:
        erased_rows.rows["replays"] += replays
        objects, remains = await self._delete_objects(erased_rows.addresses)
        remains += [
            f"{one} of the same run is damaged and was not encoded anew, so bytes that it shared may be left: erase it with --call {one}"
            for one in sorted(erased_rows.damaged)
        ]
        rows = {table: count for table, count in erased_rows.rows.items() if count}
        return ErasureReport(
            sorted(erased_rows.runs), sorted(erased_rows.exchanges), rows, files, objects, [*files.remains, *remains]
        )

    async def _delete_objects(self, addresses: Collection[bytes]) -> tuple[int, list[str]]:
        """Delete the objects that nothing names any more; return how many, and what may still be there."""
        try:
            return await self.database.objects.delete_unused(self.project, addresses), []
        except ObjectStorageDown as error:
            return 0, [
                f"objects of it are in object storage until retention deletes them there, which it tries every hour: {error}"
            ]


CALLS = "SELECT id FROM calls WHERE project = $1 AND run = $2 AND id >= $3 AND id < $4 ORDER BY id"
