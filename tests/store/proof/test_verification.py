"""A run that was stored verifies, and any change of it is found and named."""

import random
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from calls.events import Gap
from calls.model import Exchange
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.proof.sealing import Sealer
from store.proof.signing_keys import SigningKeys
from store.proof.verification import RunVerifier, Verification
from store.query.exchanges import ExchangeQueries
from store.query.runs import Runs
from tests.store.house import SIGNING_KEYS
from tests.store.samples import NOON, SECOND, call, exchange, kept
from tests.support.postgres import STORE_SERVER

RUN = "night-run"

EVIDENCE = {
    "runs": [
        "id",
        "name",
        "labels",
        "started_at",
        "ended_at",
        "parent",
        "forked_at",
        "isolation",
        "salt",
        "incarnation",
    ],
    "exchanges": [
        *("id", "run", "started_at", "first_byte_at", "ended_at", "method", "url", "status", "outcome", "redactions"),
        *("request_digest", "response_digest", "head", "request_body", "response_body", "salt"),
    ],
    "gaps": ["id", "run", "happened_at", "reason", "exchange", "evidence", "count", "salt"],
    "chain_records": ["incarnation", "server", "first", "records", "link"],
    "chains": ["incarnation", "server", "size", "head"],
    "tree_leaves": ["place", "incarnation", "server", "size", "head"],
    "tree_tiles": ["server", "level", "place", "hashes"],
    "checkpoints": ["server", "size", "note"],
}
"""The columns that are evidence, or prove it. The others are derived from these, or say how the run is managed."""


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """The directory of the checkpoints."""
    return tmp_path / "checkpoints"


@pytest.fixture
async def sealed(database: Database, copies: Path) -> Database:
    """A small run with everything that is proven, and another one beside it."""
    runs, writer = Runs(database), BatchWriter(database)
    await runs.put(RUN, NOON, "Night run", {"team": "support"}, parent="evening", forked_at=2)
    await writer.write_batch([kept(0), kept(1)])
    await writer.write_batch([kept(2, run="other")])
    gap = Gap(RUN, NOON + 5 * SECOND, "the disk was full", exchange(1).id, 2)
    await writer.write_batch(
        [replace(kept(3), exchange=replace(exchange(3), response=None, first_byte_at=None))], [gap]
    )
    await Sealer(database, SIGNING_KEYS, copies).seal("default")
    await runs.patch(RUN, labels={"release": "7"}, isolation="captive")
    await runs.patch(RUN, ended_at=NOON + 60 * SECOND)
    await Sealer(database, SIGNING_KEYS, copies).seal("default")
    return database


async def verify(
    database: Database, copies: Path | None, run: str = RUN, keys: SigningKeys = SIGNING_KEYS
) -> Verification:
    """Verify a run."""
    loader = ExchangeQueries(database, call)
    found = await RunVerifier(database, "default", loader, keys.verifier_keys("default"), copies).verify(run)
    assert found is not None
    return found


async def execute(database: Database, statement: str, *arguments: Any) -> None:
    """Do what a superuser could."""
    async with database.connection() as connection:
        await connection.execute(statement, *arguments)


async def test_a_run_that_nobody_touched_verifies(sealed: Database, copies: Path) -> None:
    found = await verify(sealed, copies)
    assert (found.verdict, found.findings, found.proven, found.unproven) == ("verified", [], 4, 0)
    (seal,) = found.seals
    assert (seal.origin, seal.unsealed) == (SIGNING_KEYS.origin("default"), 0)
    assert (await verify(sealed, copies, "other")).verdict == "verified"


async def test_what_is_not_sealed_yet_is_not_verified(sealed: Database, copies: Path) -> None:
    await BatchWriter(sealed).write_batch([kept(4)])
    found = await verify(sealed, copies)
    assert (found.verdict, [seal.unsealed for seal in found.seals]) == ("unproven", [1])
    await Sealer(sealed, SIGNING_KEYS, copies).seal("default")
    assert (await verify(sealed, copies)).verdict == "verified"


async def test_a_key_that_is_not_trusted_proves_nothing(sealed: Database, copies: Path) -> None:
    found = await verify(sealed, copies, keys=SigningKeys(STORE_SERVER, (Ed25519PrivateKey.generate(),)))
    assert [finding.change for finding in found.findings] == ["unsigned"]


def changed_values(value: Any, chooser: random.Random) -> list[Any]:
    """Other values of a column: bytes and text with a byte changed at the ends and somewhere, numbers by one."""
    match value:
        case bytes():
            places = {0, len(value) - 1, chooser.randrange(len(value))} if value else set()
            flipped = [value[:at] + bytes([value[at] ^ 1 << chooser.randrange(8)]) + value[at + 1 :] for at in places]
            return [*flipped, value[:-1], value + b"\0", None]
        case uuid.UUID():
            return [uuid.UUID(int=value.int ^ 1)]
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1]
        case str() if value:
            at = chooser.randrange(len(value))
            return [value[:at] + ("x" if value[at] != "x" else "y") + value[at + 1 :], value[:-1]]
        case None:
            return []
        case _:
            return []


async def test_every_changed_value_of_the_evidence_is_found(sealed: Database, copies: Path) -> None:
    chooser = random.Random(16)
    tried, missed = 0, []
    recorded = await exchanges(sealed)
    async with sealed.connection() as connection:
        for table, columns in EVIDENCE.items():
            for row in await own_rows(connection, table):
                place = row["row_place"]
                for column in columns:
                    for new in changed_values(row[column], chooser):
                        set_value = f"UPDATE {row['row_table']} SET {column} = $1 WHERE ctid = $2::text::tid RETURNING ctid::text"
                        try:
                            place = await connection.fetchval(set_value, new, place)
                        except asyncpg.PostgresError:
                            continue  # the column cannot have this value
                        tried += 1
                        if await verdict(sealed, copies) == "verified" and (
                            table != "exchanges" or await exchanges(sealed) != recorded
                        ):
                            missed.append(f"{table}.{column}: {row[column]!r:.80} -> {new!r:.80}")
                        place = await connection.fetchval(set_value, row[column], place)
    assert missed == [], "\n".join(missed)
    assert tried > 150
    assert await verdict(sealed, copies) == "verified"


async def test_every_removed_row_of_the_evidence_is_found(sealed: Database, copies: Path) -> None:
    missed = []
    for table in (*EVIDENCE, "parts"):
        async with sealed.connection() as connection:
            rows = await own_rows(connection, table)
            for row in rows:
                values = [value for name, value in row.items() if name not in ("row_place", "row_table")]
                names = [name for name in row.keys() if name not in ("row_place", "row_table")]  # noqa: SIM118 - a record of asyncpg
                await connection.execute(f"DELETE FROM {row['row_table']} WHERE ctid = $1::text::tid", row["row_place"])
                if await verdict(sealed, copies) == "verified":
                    missed.append(f"{table}: {dict(row)!r:.200}")
                numbers = ", ".join(f"${number}" for number in range(1, len(names) + 1))
                await connection.execute(
                    f"INSERT INTO {row['row_table']} ({', '.join(names)}) VALUES ({numbers})", *values
                )
    assert missed == [], "\n".join(missed)
    assert await verdict(sealed, copies) == "verified"


async def exchanges(database: Database) -> list[Exchange]:
    """What the run has. Bytes that are packed otherwise and mean the same are no change of it."""
    return [one async for one in ExchangeQueries(database, call).exchanges(RUN)]


async def own_rows(connection: asyncpg.Connection, table: str) -> list[asyncpg.Record]:
    """The rows of a table that concern our run: of chains and leaves, not those of the other run."""
    incarnation = await connection.fetchval("SELECT incarnation FROM runs WHERE id = $1", RUN)
    rows = await connection.fetch(
        f"SELECT *, ctid::text AS row_place, tableoid::regclass::text AS row_table FROM {table}"
    )
    if table in ("checkpoints", "tree_leaves"):  # the newest proves what the earlier ones do
        return [
            max(
                (row for row in rows if row.get("incarnation", incarnation) == incarnation), key=lambda row: row["size"]
            )
        ]
    return [
        row
        for row in rows
        if row.get("incarnation", incarnation) == incarnation and "other" not in (row.get("run"), row.get("id"))
    ]


async def verdict(database: Database, copies: Path) -> str:
    """The verdict on our run; `gone` if there is no run of this name any more."""
    loader = ExchangeQueries(database, call)
    found = await RunVerifier(database, "default", loader, SIGNING_KEYS.verifier_keys("default"), copies).verify(RUN)
    return "gone" if found is None else found.verdict
