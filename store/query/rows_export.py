"""Export a run's rows for a replay on this machine (`store.bundle.rows_bundle`).

The first request of a replay waits for this. So a run that can be held together is read by one statement: each further one costs the
store server and Postgres a third of a millisecond, and a transaction two of them.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import asyncpg

from calls.events import EffectBatch, Gap
from store.bundle.bundle import NOT_EXPORTED
from store.bundle.rows_bundle import COLUMNS, MAGIC, Effects, Parts, Rows, RowsHead, Tail, encode_frame
from store.bundle.stored_effects import EffectQueries
from store.database.connection import Database
from store.database.object_forms import fill_in, objects_of
from store.database.rows import digest_text
from store.database.schema_version import SCHEMA
from store.generations.names import newest_generation
from store.query.exchange_reader import HELD_ROWS, TooLarge, erased_bodies
from store.query.rekey import read_keys, read_keys_of_many
from store.query.rest_shapes import NO_STATS, run_shape

MOST_FROM_OBJECTS: Final = 16 << 20
"""Bytes from object storage that are held together; a single row may have more."""

BATCH: Final = 20
"""Rows of a large run that are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """A run, and what decides how its rows are read."""

    id: str
    labels: Mapping[str, str]
    frame: bytes
    gaps: list[Gap]
    has_effects: bool
    batch: int | None
    """Rows that are read together; None: all, which can be held."""

    packed: int
    """Bytes of its packed rows."""

    @property
    def is_in_one_piece(self) -> bool:
        """Whether its rows bundle is small."""
        return self.batch is None and not self.has_effects


NO_CALL: Final = (None, None)
"""The key and profile of an exchange without a call."""

BODIES: Final = (COLUMNS.index("request_body"), COLUMNS.index("response_body"))

type ExportedRun = tuple[RunHead, AsyncGenerator[bytes]]
"""A run's head and its rows bundle, in pieces."""


type NamedRows = Mapping[str, Any]
"""The run of a name with its rows, as far as these are read together, and the `report` of the replay of that name, in a form of
`blobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsExporter:
    """Exports the rows of runs. Without `reads_large`, large runs raise `TooLarge`."""

    database: Database
    profiles: str
    """The digest of the profiles in force."""

    project: str = "default"
    reads_large: bool = True

    async def export(self, run: str, now: int) -> ExportedRun | None:
        """Return a run's head and its rows bundle, in pieces; None if there is no such run.

        Raises `TooLarge`, and `BodyUnavailable` if retention has erased bodies of it.
        """
        return self.export_read(await self.read(run), now)

    async def read(self, name: str) -> NamedRows:
        """Read what there is of this name."""
        async with self.database.connection_by_keys() as connection:
            found: NamedRows = await connection.fetchrow(NAMED, self.project, name, HELD_ROWS)
        return found

    def export_read(self, found: NamedRows, now: int) -> ExportedRun | None:
        """Return what `export` returns for the run that was read, and raise what it raises."""
        if found["id"] is None:
            return None
        head = self._run_head(found, now)
        if head.batch is not None:
            return head, self._stream_rows(head)
        calls = _read_columns(found, "call", CALL_COLUMNS)
        keys = {id: (digest_text(key), profile) for id, key, profile in zip(*calls, strict=True)}  # noqa: A001
        rows, parts = _read_columns(found, "row", COLUMNS), _read_columns(found, "part", PART_COLUMNS)
        if head.is_in_one_piece and not objects_of(chain(*(rows[place] for place in BODIES), parts[-1])):
            # Nothing is read any more. To make a dictionary of each row would take half of the time.
            return head, _one_piece(_plain_rows(head, rows, keys, parts))
        return head, self._held_rows(head, _as_rows(COLUMNS, rows), keys, _as_rows(PART_COLUMNS, parts))

    async def export_many(
        self, runs: Sequence[str], now: int, most: int
    ) -> AsyncIterator[tuple[str, tuple[RunHead, bytes] | None]]:
        """Yield runs with their heads and rows bundles, which are read together; None for those that `export` has to read.

        Those are unknown ones, ones with erased or large bodies or with effects, and those whose name means a replay or, with a
        newer generation, another run. It stops before the run with which their packed rows would exceed `most` bytes.
        """
        async with (
            self.database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            heads = {row["id"]: row for row in await connection.fetch(HEADS, self.project, runs)}
            chosen: list[tuple[str, RunHead | None]] = []
            size = 0
            for run in runs:
                head = self._small_head(heads.get(run), now)
                size += head.packed if head else 0
                if chosen and size > most:
                    break
                chosen.append((run, head))
            names = [run for run, head in chosen if head is not None]
            rows = _group_by_run(await connection.fetch(ROWS_OF_MANY, self.project, names))
            keys = await read_keys_of_many(connection, names, self.project)
            parts = _group_by_run(await connection.fetch(PARTS_OF_MANY, self.project, names))
        for run, head in chosen:
            if head is None:
                yield run, None
            else:
                pieces = self._held_rows(head, rows.get(run, []), keys, parts.get(run, []))
                yield run, (head, b"".join([piece async for piece in pieces]))

    def _small_head(self, row: Mapping[str, Any] | None, now: int) -> RunHead | None:
        """Return the head of a run that can be read together with others; None of another."""
        if row is None or row["erased"] or row["is_replay"] or row["has_effects"] or row["has_large"]:
            return None
        head = self._run_head(row, now)
        is_newest = newest_generation(head.id, {"labels": head.labels}) == head.id
        return head if head.batch is None and is_newest else None

    def _run_head(self, row: Mapping[str, Any], now: int) -> RunHead:
        if row["erased"]:
            raise erased_bodies(row["id"], row["erased"])
        is_held = not row["has_large"] and row["packed"] <= HELD_ROWS
        if not is_held and not self.reads_large:
            raise TooLarge
        labels = json.loads(row["labels"])
        shape = run_shape({**row, "labels": labels}, NO_STATS, now)
        exported = {name: value for name, value in shape.items() if name not in NOT_EXPORTED and name != "attribution"}
        return RunHead(
            id=row["id"],
            labels=labels,
            frame=MAGIC + encode_frame(RowsHead(SCHEMA, exported, row["profile"] or self.profiles)),
            gaps=[Gap(*gap) for gap in json.loads(row["found_gaps"])],
            has_effects=row["has_effects"],
            batch=None if is_held else 1 if row["has_large"] else BATCH,
            packed=row["packed"],
        )

    async def _held_rows(
        self, head: RunHead, rows: Sequence[Any], keys: Mapping[str, tuple[str, str]], parts: Sequence[Any]
    ) -> AsyncGenerator[bytes]:
        frames = [head.frame]
        frames += [frame async for frame in self._row_frames(rows, keys)]
        frames += [frame async for frame in self._part_frames(parts)]
        if head.is_in_one_piece:
            yield b"".join([*frames, encode_frame(Tail(len(rows), head.gaps))])
            return
        yield b"".join(frames)
        async for one in self._effects(head):
            yield encode_frame(Effects([one]))
        yield encode_frame(Tail(len(rows), head.gaps))

    async def _stream_rows(self, head: RunHead) -> AsyncGenerator[bytes]:
        yield head.frame
        async with self.database.connection() as connection:
            keys = await read_keys(connection, head.id, self.project)
        count = 0
        async for rows in self._batches(ROWS, head):
            count += len(rows)
            async for frame in self._row_frames(rows, keys):
                yield frame
        async for parts in self._batches(PARTS, head):
            async for frame in self._part_frames(parts):
                yield frame
        if head.has_effects:
            async for one in self._effects(head):
                yield encode_frame(Effects([one]))
        yield encode_frame(Tail(count, head.gaps))

    async def _row_frames(self, rows: Sequence[Any], keys: Mapping[str, tuple[str, str]]) -> AsyncIterator[bytes]:
        for some in _batches_by_objects(rows, ("request_body", "response_body")):
            filled = await self._fill_objects(some, ("request_body", "response_body"))
            yield encode_frame(
                Rows([(str(row["id"]), *list(row.values())[1:], *keys.get(str(row["id"]), NO_CALL)) for row in filled])
            )

    async def _part_frames(self, parts: Sequence[Any]) -> AsyncIterator[bytes]:
        for some in _batches_by_objects(parts, ("body",)):
            filled = await self._fill_objects(some, ("body",))
            yield encode_frame(Parts([(row["hash"], row["body"]) for row in filled]))

    def _effects(self, head: RunHead) -> AsyncIterator[EffectBatch]:
        return EffectQueries(self.database, self.project).batches(head.id)

    async def _batches(self, query: str, head: RunHead) -> AsyncIterator[list[asyncpg.Record]]:
        async with (
            self.database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            cursor = await connection.cursor(query, self.project, head.id)
            while found := await cursor.fetch(head.batch):
                yield found

    async def _fill_objects(self, rows: Sequence[Any], columns: Sequence[str]) -> Sequence[Any]:
        """Return the rows with the contents of objects in their columns; of one that cannot be had, why."""
        refs = objects_of(row[column] for row in rows for column in columns)
        if not refs:
            return rows
        contents = await self.database.objects.load(self.project, refs)
        return [
            {name: fill_in(value, contents) if name in columns and value else value for name, value in row.items()}
            for row in rows
        ]


def _read_columns(row: Mapping[str, Any], kind: str, columns: Sequence[str]) -> list[Sequence[Any]]:
    """Return the columns that a statement returned as an array each."""
    return [row[f"{kind}_{column}"] or () for column in columns]


def _as_rows(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the rows of columns."""
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _plain_rows(
    head: RunHead,
    columns: Sequence[Sequence[Any]],
    keys: Mapping[str, tuple[str, str]],
    parts: Sequence[Sequence[Any]],
) -> bytes:
    """Return the rows bundle of a run all of which is there."""
    of_calls = [keys.get(id, NO_CALL) for id in columns[0]]  # noqa: A001
    rows = list(zip(*columns, *zip(*of_calls, strict=True), strict=True)) if of_calls else []
    frames = (Rows(rows), Parts(list(zip(*parts, strict=True))), Tail(len(rows), head.gaps))
    return head.frame + b"".join(map(encode_frame, frames))


async def _one_piece(content: bytes) -> AsyncGenerator[bytes]:
    yield content


def _group_by_run(rows: Sequence[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(row["run"], []).append(row)
    return groups


def _batches_by_objects(rows: Sequence[Any], columns: Sequence[str]) -> Iterator[list[Any]]:
    """Divide rows so that only so many bytes from object storage are held at a time."""
    batch: list[Any] = []
    size = 0
    for row in rows:
        own = sum(ref.size for ref in objects_of(row[column] for column in columns))
        if batch and own and size + own > MOST_FROM_OBJECTS:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += own
    if batch:
        yield batch


_HEAD_COLUMNS: Final = """
    coalesce(sizes.has_large, false) AS has_large,
    CASE WHEN runs.bodies_erased_at IS NULL THEN 0 ELSE sizes.erased END AS erased,
    coalesce(sizes.packed, 0) + coalesce(
        (SELECT sum(octet_length(body)) FROM parts WHERE project = runs.project AND run = runs.id), 0
    ) AS packed,
    EXISTS (SELECT FROM effects WHERE project = runs.project AND run = runs.id) AS has_effects,
    (
        SELECT coalesce(json_agg(json_build_array(run, happened_at, reason, exchange, count) ORDER BY happened_at, id), '[]')
        FROM gaps WHERE project = runs.project AND run = runs.id
    ) AS found_gaps
"""

_SIZES: Final = """
LATERAL (
    SELECT bool_or(large) AS has_large, count(*) FILTER (WHERE request_digest IS NULL) AS erased,
        sum(coalesce(octet_length(request_body), 0) + coalesce(octet_length(response_body), 0) + octet_length(head)) AS packed
    FROM exchanges WHERE project = runs.project AND run = runs.id
) AS sizes
"""

HEADS = f"""
SELECT runs.*, EXISTS (SELECT FROM replays WHERE project = $1 AND id = runs.id) AS is_replay, {_HEAD_COLUMNS}
FROM runs, {_SIZES} WHERE runs.project = $1 AND runs.id = ANY($2::text[])
"""  # noqa: S608 - constants

ROWS = f"""
SELECT {", ".join(COLUMNS)} FROM exchanges WHERE project = $1 AND run = $2 ORDER BY started_at, id
"""  # noqa: S608 - constants

PARTS = "SELECT DISTINCT ON (hash) hash, body FROM parts WHERE project = $1 AND run = $2 ORDER BY hash, day"

ROWS_OF_MANY = f"""
SELECT {", ".join(COLUMNS)} FROM exchanges WHERE project = $1 AND run = ANY($2::text[]) ORDER BY started_at, id
"""  # noqa: S608 - constants

PARTS_OF_MANY = """
SELECT DISTINCT ON (run, hash) run, hash, body FROM parts WHERE project = $1 AND run = ANY($2::text[]) ORDER BY run, hash, day
"""

CALL_COLUMNS: Final = ("id", "key", "profile")
PART_COLUMNS: Final = ("hash", "body")


def _arrays(kind: str, columns: Sequence[str]) -> str:
    """Return the expressions of `_read_columns`. Postgres writes an id as text in a fraction of the time that Python takes."""
    values = {column: "id::text" if column == "id" else column for column in columns}
    return ", ".join(f"array_agg({value}) AS {kind}_{column}" for column, value in values.items())


_IS_HELD: Final = "NOT head.has_large AND head.erased = 0 AND head.packed <= $3"

# One statement sees one state of the database, without a transaction. What cannot be held is not read.
NAMED = f"""
SELECT (SELECT report FROM replays WHERE project = $1 AND id = $2) AS report, head.*, found_rows.*, found_calls.*, found_parts.*
FROM (SELECT) AS one
LEFT JOIN (
    SELECT runs.*, {_HEAD_COLUMNS} FROM runs, {_SIZES} WHERE runs.project = $1 AND runs.id = $2
) AS head ON true
LEFT JOIN LATERAL (
    SELECT {_arrays("row", COLUMNS)} FROM ({ROWS}) AS ordered WHERE {_IS_HELD}
) AS found_rows ON true
LEFT JOIN LATERAL (
    SELECT {_arrays("call", CALL_COLUMNS)} FROM calls WHERE project = $1 AND run = $2 AND {_IS_HELD}
) AS found_calls ON true
LEFT JOIN LATERAL (
    SELECT {_arrays("part", PART_COLUMNS)} FROM ({PARTS}) AS ordered WHERE {_IS_HELD}
) AS found_parts ON true
"""  # noqa: S608 - constants
