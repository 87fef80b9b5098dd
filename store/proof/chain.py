"""Append records to the chains of runs, in the transaction that stores what they commit to.

A chain belongs to one incarnation of a run and to one store server, which alone appends to it. Whoever appends holds the lock of the
run's row, so that a chain has one end.
"""

import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import asyncpg
import msgspec

from calls.proof.records import FIRST_LINK, ChainRecord, ErasedPart, fold_links, rule_text

NO_END: Final = (0, FIRST_LINK)
"""The size and head of a chain without records."""

URGENT: Final = ("end", "erased")
"""Kinds of records after which a checkpoint is signed at once."""


type ChainEnds = Mapping[uuid.UUID, tuple[int, bytes]]
"""The size and the head of chains of a store server, by the incarnation of their run."""


class NewRecords(dict[uuid.UUID, list[ChainRecord]]):
    """New records by the incarnation of their run, in the order in which they are appended."""

    def add(self, incarnation: uuid.UUID | None, record: ChainRecord) -> None:
        """Add a record; without an incarnation there is no such run any more, and nothing to prove."""
        if incarnation is not None:
            self.setdefault(incarnation, []).append(record)


def chain_name(incarnation: uuid.UUID, server: uuid.UUID) -> str:
    """Return the name of a chain in its records."""
    return f"{incarnation}/{server}"


def decode_records(data: bytes) -> list[ChainRecord]:
    """Read the records of a row. Raises `msgspec.DecodeError`."""
    return _decode(data)


async def append_records(
    connection: asyncpg.Connection,
    project: str,
    server: uuid.UUID | None,
    records: Mapping[uuid.UUID, Sequence[ChainRecord]],
    ends: ChainEnds = MappingProxyType({}),
) -> None:
    """Append records to the chains of a store server. Without a server, nothing is proven.

    `ends` has chains whose end is known already: `NO_END` of one that there is not yet.
    Raises `asyncpg.SerializationError` if another process has appended to the same chain.
    """
    if server is None or not records:
        return
    if others := [incarnation for incarnation in records if incarnation not in ends]:
        found = await connection.fetch(ENDS, project, server, others)
        ends = {**ends, **{row["incarnation"]: (row["size"], row["head"]) for row in found}}
    rows = []
    # In one order: who appends to several chains may wait for another who does, and not the other way round.
    for incarnation, new in sorted(records.items()):
        first, link = ends.get(incarnation, NO_END)
        size, head = fold_links(chain_name(incarnation, server), new, link, first)
        is_urgent = any(record.kind in URGENT for record in new)
        rows.append((incarnation, first, _encode(new), size, head, is_urgent))
    columns = list(zip(*rows, strict=True))
    try:
        await connection.execute(APPEND, project, server, *map(list, columns))
    except asyncpg.UniqueViolationError as error:
        raise asyncpg.SerializationError("another process has appended to the same chain") from error


async def append_erasures(
    connection: asyncpg.Connection,
    project: str,
    server: uuid.UUID | None,
    erased: Mapping[uuid.UUID, Sequence[tuple[uuid.UUID, int, ErasedPart]]],
    now: int,
    rule: str | None = None,
) -> None:
    """Append that exchanges or gaps of runs, by incarnation, were erased: the id of each, when it began, and which part of it.

    `rule` is the rule of retention by which that happened, if it was one.
    """
    records = {
        incarnation: [
            ChainRecord(kind="erased", id=str(name), began=began, part=part, at=now, rule=rule and rule_text(rule))
            for name, began, part in some
        ]
        for incarnation, some in erased.items()
    }
    await append_records(connection, project, server, records)


async def forget_run(
    connection: asyncpg.Connection, project: str, server: uuid.UUID | None, incarnation: uuid.UUID, now: int
) -> None:
    """Append that a run was erased, and delete all earlier records of it. What remains names neither the run nor its exchanges."""
    await append_records(
        connection, project, server, {incarnation: [ChainRecord(kind="erased", part="run", at=now)]} if server else {}
    )
    await connection.execute(FORGET, project, incarnation)


async def dissolve_runs(
    connection: asyncpg.Connection, project: str, server: uuid.UUID | None, incarnations: Sequence[uuid.UUID]
) -> None:
    """Append that runs were dissolved: everything that they had is in the chains of other runs now."""
    if server is not None:
        dissolved = ChainRecord(kind="moved")
        await append_records(connection, project, server, {incarnation: [dissolved] for incarnation in incarnations})
    for incarnation in incarnations:
        await connection.execute(FORGET, project, incarnation)


def is_last_of_run(record: ChainRecord) -> bool:
    """Return whether a run ends with this record: it was erased, or dissolved."""
    return record.part == "run" or (record.kind == "moved" and not record.id)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[ChainRecord]).decode

FORGET = """
DELETE FROM chain_records WHERE project = $1 AND incarnation = $2 AND first < (
    SELECT max(size) FROM chains WHERE chains.project = $1 AND chains.incarnation = $2 AND chains.server = chain_records.server
) - 1
"""

ENDS = """
SELECT incarnation, size, head FROM chains WHERE project = $1 AND server = $2 AND incarnation = ANY ($3::uuid[])
ORDER BY incarnation FOR UPDATE
"""

APPEND = """
WITH new AS (
    SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bytea[], $8::boolean[])
        AS new (incarnation, first, records, size, head, is_urgent)
), appended AS (
    INSERT INTO chain_records (project, incarnation, server, first, records, link)
    SELECT $1::text, incarnation, $2::uuid, first, records, head FROM new
)
INSERT INTO chains (project, incarnation, server, size, head, is_unsealed, is_urgent)
SELECT $1::text, incarnation, $2::uuid, size, head, true, is_urgent FROM new
ON CONFLICT (project, incarnation, server) DO UPDATE SET
    size = excluded.size, head = excluded.head, is_unsealed = true, is_urgent = chains.is_urgent OR excluded.is_urgent
"""
