"""A run that was stored verifies, and any change of it is found and named."""

import asyncio
import os
import random
import sys
import uuid
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from calls.events import EffectBatch, Gap
from calls.model import Exchange
from calls.proof.records import ChainRecord
from store.bundle.stored_effects import EffectQueries
from store.database.blobs import pack
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.proof.chain import append_erasures, append_records
from store.proof.sealing import Sealer, TreeAltered
from store.proof.signing_keys import SigningKeys
from store.proof.verdict import Verification
from store.proof.verification import RunVerifier
from store.query.call_reader import CallReader
from store.query.runs import Runs
from tests.store.exchanges import effect_batch
from tests.store.running_store import SIGNING_KEYS
from tests.store.samples import NOON, SECOND, call, exchange, tool_exchange
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
    "effects": ["id", "run", "observed_at", "process", "number", "count", "items", "salt"],
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
async def sealed_database(database: Database, copies: Path) -> Database:
    """A small run with everything that is proven, and another one beside it."""
    runs, writer = Runs(database), BatchWriter(database)
    await runs.put(RUN, NOON, "Night run", {"team": "support"}, parent="evening", forked_at=2)
    await writer.write_batch([tool_exchange(0), tool_exchange(1)])
    await writer.write_batch([tool_exchange(2, run="other")])
    gap = Gap(RUN, NOON + 5 * SECOND, "the disk was full", exchange(1).id, 2)
    await writer.write_batch(
        [replace(tool_exchange(3), exchange=replace(exchange(3), response=None, first_byte_at=None))], [gap]
    )
    await writer.write_batch((), effects=[effect_batch(0, RUN, NOON)])
    await Sealer(database, SIGNING_KEYS, copies).seal("default")
    await runs.patch(RUN, labels={"release": "7"}, isolation="captive")
    await runs.patch(RUN, ended_at=NOON + 60 * SECOND)
    await Sealer(database, SIGNING_KEYS, copies).seal("default")
    return database


async def verify(
    database: Database, copies: Path | None, run: str = RUN, keys: SigningKeys = SIGNING_KEYS
) -> Verification:
    """Verify a run."""
    loader = CallReader(database, call)
    found = await RunVerifier(database, "default", loader, keys.verifier_keys("default"), copies).verify(run)
    assert found is not None
    return found


async def execute(database: Database, statement: str, *arguments: Any) -> None:
    """Do what a superuser could."""
    async with database.connection() as connection:
        await connection.execute(statement, *arguments)


async def test_a_run_that_nobody_touched_verifies(sealed_database: Database, copies: Path) -> None:
    found = await verify(sealed_database, copies)
    assert (found.verdict, found.findings, found.proven, found.unproven) == ("verified", [], 5, 0)
    (seal,) = found.seals
    assert (seal.origin, seal.unsealed) == (SIGNING_KEYS.origin("default"), 0)
    assert (await verify(sealed_database, copies, "other")).verdict == "verified"


async def test_what_is_not_sealed_yet_is_not_verified(sealed_database: Database, copies: Path) -> None:
    await BatchWriter(sealed_database).write_batch([tool_exchange(4)])
    found = await verify(sealed_database, copies)
    assert (found.verdict, [seal.unsealed for seal in found.seals]) == ("unproven", [1])
    await Sealer(sealed_database, SIGNING_KEYS, copies).seal("default")
    assert (await verify(sealed_database, copies)).verdict == "verified"


async def test_a_key_that_is_not_trusted_proves_nothing(sealed_database: Database, copies: Path) -> None:
    found = await verify(sealed_database, copies, keys=SigningKeys(STORE_SERVER, (Ed25519PrivateKey.generate(),)))
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


async def test_every_changed_value_of_the_evidence_is_found(sealed_database: Database, copies: Path) -> None:
    chooser = random.Random(16)
    tried, missed = 0, []
    recorded = await recorded_content(sealed_database)
    async with sealed_database.connection() as connection:
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
                        if await verdict(sealed_database, copies) == "verified" and (
                            table not in ("exchanges", "effects") or await recorded_content(sealed_database) != recorded
                        ):
                            missed.append(f"{table}.{column}: {row[column]!r:.80} -> {new!r:.80}")
                        place = await connection.fetchval(set_value, row[column], place)
    assert missed == [], "\n".join(missed)
    assert tried > 150
    assert await verdict(sealed_database, copies) == "verified"


@pytest.mark.parametrize(
    "change", ["name = 'x'", 'labels = \'{"a": "b"}\'', "parent = 'x'", "forked_at = 1", "isolation = 'captive'"]
)
async def test_nobody_can_say_something_about_a_run_without_a_record_of_it(
    sealed_database: Database, copies: Path, change: str
) -> None:
    await execute(sealed_database, f"UPDATE runs SET {change} WHERE id = 'other'")
    (finding,) = (await verify(sealed_database, copies, "other")).findings
    assert (finding.change, finding.element) == ("altered", "run")


async def test_every_removed_row_of_the_evidence_is_found(sealed_database: Database, copies: Path) -> None:
    missed = []
    for table in (*EVIDENCE, "parts"):
        async with sealed_database.connection() as connection:
            rows = await own_rows(connection, table)
            for row in rows:
                values = [value for name, value in row.items() if name not in ("row_place", "row_table")]
                names = [name for name in row.keys() if name not in ("row_place", "row_table")]  # noqa: SIM118 - a record of asyncpg
                await connection.execute(f"DELETE FROM {row['row_table']} WHERE ctid = $1::text::tid", row["row_place"])
                if await verdict(sealed_database, copies) == "verified":
                    missed.append(f"{table}: {dict(row)!r:.200}")
                numbers = ", ".join(f"${number}" for number in range(1, len(names) + 1))
                await connection.execute(
                    f"INSERT INTO {row['row_table']} ({', '.join(names)}) VALUES ({numbers})", *values
                )
    assert missed == [], "\n".join(missed)
    assert await verdict(sealed_database, copies) == "verified"


async def recorded_content(database: Database) -> list[Exchange | EffectBatch]:
    """What the run has. Bytes that are packed otherwise and mean the same are no change of it."""
    found: list[Exchange | EffectBatch] = [one async for one in CallReader(database, call).exchanges(RUN)]
    return [*found, *[one async for one in EffectQueries(database, "default").batches(RUN)]]


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
    loader = CallReader(database, call)
    found = await RunVerifier(database, "default", loader, SIGNING_KEYS.verifier_keys("default"), copies).verify(RUN)
    return "gone" if found is None else found.verdict


async def test_what_moves_to_another_run_is_proven_there(database: Database, copies: Path) -> None:
    writer = BatchWriter(database)
    gap = Gap("guess", NOON, "the disk was full", exchange(1).id)
    await writer.write_batch([tool_exchange(0, run="guess"), tool_exchange(1, run="guess")], [gap])
    moved = replace(tool_exchange(1, run=RUN), previous_run="guess")
    await writer.write_batch([moved])
    await Sealer(database, SIGNING_KEYS, copies).seal("default")
    found, left = await verify(database, copies), await verify(database, copies, "guess")
    assert (found.verdict, found.proven, found.findings) == ("verified", 2, [])
    assert (left.verdict, left.proven, left.findings) == ("verified", 1, [])
    # Back again, and the other exchange as well: then the run that it came from is dissolved.
    back = [replace(tool_exchange(number, run="guess"), previous_run=RUN) for number in (1,)]
    await writer.write_batch(back)
    await Sealer(database, SIGNING_KEYS, copies).seal("default")
    found = await verify(database, copies, "guess")
    assert (found.verdict, found.proven, found.findings) == ("verified", 3, [])


async def test_two_store_servers_append_to_chains_of_their_own(
    database: Database, database_url: str, copies: Path
) -> None:
    other_keys = SigningKeys(uuid.uuid4(), (Ed25519PrivateKey.generate(),))
    other = Database(database_url, other_keys.server)
    await other.prepare()
    try:
        await BatchWriter(database).write_batch([tool_exchange(0)])
        await BatchWriter(other).write_batch([tool_exchange(1)])
        await Runs(other).patch(RUN, ended_at=NOON + 60 * SECOND)
        for one, keys in ((database, SIGNING_KEYS), (other, other_keys)):
            await Sealer(one, keys, copies / str(keys.server)).seal("default")
        both = [*SIGNING_KEYS.verifier_keys("default"), *other_keys.verifier_keys("default")]
        found = await RunVerifier(database, "default", CallReader(database, call), both, None).verify(RUN)
        assert found is not None
        assert (found.verdict, found.proven, len(found.seals)) == ("verified", 2, 2)
        # The key of the other store server is not known here.
        found = await verify(database, copies / str(STORE_SERVER))
        assert [finding.change for finding in found.findings] == ["unsigned"]
        # Whichever of them erases the run, the other one misses nothing.
        assert await Runs(other).delete(RUN)
        directory = copies / str(STORE_SERVER)
        await Sealer(database, SIGNING_KEYS, directory).seal("default")
        verifier = RunVerifier(database, "default", CallReader(database, call), both, directory)
        assert (await verifier.verify_project(STORE_SERVER)).findings == []
    finally:
        await other.close()


async def test_checkpoints_are_read_in_any_locale(sealed_database: Database, copies: Path) -> None:
    """Their signatures begin with a dash that is not in ASCII."""
    program = """if True:
        import sys
        from pathlib import Path
        from store.proof.sealing import _read_text
        from store.proof.tree_check import TreeChecker
        from store.anchors.anchor_check import AnchorTrust
        copies = Path(sys.argv[1])
        checker = TreeChecker("default", (), "own", copies, AnchorTrust())
        assert _read_text(copies / "default") == checker._read_copy("own") == (copies / "default").read_bytes().decode()
    """
    command = [sys.executable, "-c", program, str(copies)]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    _, said = await done.communicate()
    assert done.returncode == 0, said.decode()


async def test_an_altered_tree_is_not_signed(sealed_database: Database, copies: Path) -> None:
    await BatchWriter(sealed_database).write_batch([tool_exchange(4)])
    sealer = Sealer(sealed_database, SIGNING_KEYS, copies)
    hashes: bytes
    async with sealed_database.connection() as connection:
        hashes = await connection.fetchval("SELECT hashes FROM tree_tiles")
    for statement, value in (
        ("UPDATE tree_tiles SET hashes = $1", bytes([hashes[0] ^ 1]) + hashes[1:]),
        ("UPDATE tree_tiles SET hashes = $1", hashes[:-32]),
        ("DELETE FROM checkpoints WHERE size <> $1", 2),
    ):
        await execute(sealed_database, statement, value)
        with pytest.raises(TreeAltered):
            await sealer.seal("default")
        await execute(sealed_database, "UPDATE tree_tiles SET hashes = $1", hashes)
    assert (await verify(sealed_database, copies)).findings[0].change == "truncated"


async def test_an_altered_tree_is_reported_and_those_of_other_projects_are_signed(
    database: Database, copies: Path
) -> None:
    sealer = Sealer(database, SIGNING_KEYS, copies)
    projects = ("alpha", "beta", "gamma")
    for project in projects:
        await BatchWriter(database, project=project).write_batch([tool_exchange(0)])
        await sealer.seal(project)
        await BatchWriter(database, project=project).write_batch([tool_exchange(1)])
    hashes: bytes
    async with database.connection() as connection:
        hashes = await connection.fetchval("SELECT hashes FROM tree_tiles WHERE project = 'beta'")
    await execute(database, "UPDATE tree_tiles SET hashes = $1 WHERE project = 'beta'", bytes(32))
    reported: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(sealer.run(reported.put_nowait))
        first = await reported.get()
        assert "project beta is proven from now on" in first
        assert "`playhead verify --all`" in first
        assert await signed_sizes(database) == {"alpha": 2, "beta": 1, "gamma": 2}
        assert list(sealer.troubles) == ["beta"]
        await execute(database, "UPDATE tree_tiles SET hashes = $1 WHERE project = 'beta'", hashes)
        await sealer.seal("beta")
        assert await reported.get() == "checkpoints of project beta are signed again"
        running.cancel()
    assert (await signed_sizes(database))["beta"] == 2
    await execute(database, "UPDATE tree_tiles SET hashes = $1 WHERE project = 'alpha'", bytes(32))
    for project in projects:
        await BatchWriter(database, project=project).write_batch([tool_exchange(2)])
    await sealer.seal_all()
    assert await signed_sizes(database) == {"alpha": 2, "beta": 3, "gamma": 3}


async def signed_sizes(database: Database) -> dict[str, int]:
    """The sizes of the trees that were signed, by project."""
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT project, max(size) AS size FROM checkpoints GROUP BY project")
    return {row["project"]: row["size"] for row in rows}


async def test_each_kind_of_change_is_named(sealed_database: Database, copies: Path) -> None:
    async with sealed_database.connection() as connection:
        rows = await connection.fetch("SELECT first FROM chain_records WHERE first < 6 ORDER BY first")
    second, third = rows[1]["first"], rows[2]["first"]
    swap = f"UPDATE chain_records SET first = CASE first WHEN {second} THEN -1 ELSE first END"
    body = "UPDATE exchanges SET response_body = '\\x00616c7465726564', response_digest = sha256('altered'::bytea) WHERE id = $1"
    inserted = "INSERT INTO exchanges SELECT (jsonb_populate_record(exchanges, jsonb_build_object('id', $1::text))).* FROM exchanges WHERE id = $2::uuid"
    tried: dict[str, list[tuple[str, ...]]] = {
        "altered": [(body, exchange(1).id)],
        "removed": [("DELETE FROM exchanges WHERE id = $1", exchange(1).id)],
        "inserted": [(inserted, exchange(9).id, exchange(0).id)],
        "truncated": [("DELETE FROM chain_records WHERE first = (SELECT max(first) FROM chain_records)",)],
        "reordered": [
            (swap,),
            (f"UPDATE chain_records SET first = {second} WHERE first = {third}",),
            (f"UPDATE chain_records SET first = {third} WHERE first = -1",),
        ],
    }
    changes = {}
    for expected, statements in tried.items():
        async with sealed_database.connection() as connection:
            copy = {table: await connection.fetch(f"SELECT * FROM {table}") for table in ("exchanges", "chain_records")}
            for statement, *arguments in statements:
                await connection.execute(statement, *arguments)
            changes[expected] = (await verify(sealed_database, copies)).findings[0].change
            for table, were in copy.items():
                await connection.execute(f"DELETE FROM {table}")
                numbers = ", ".join(f"${number}" for number in range(1, len(were[0]) + 1))
                await connection.executemany(f"INSERT INTO {table} VALUES ({numbers})", [tuple(row) for row in were])
    assert changes == {change: change for change in tried}
    assert (await verify(sealed_database, copies)).verdict == "verified"


async def test_what_an_earlier_version_stored_is_unproven_and_not_altered(
    database: Database, database_url: str, copies: Path
) -> None:
    earlier = Database(database_url)
    await earlier.prepare()
    try:
        await Runs(earlier).put(RUN, NOON, "Night run", {"team": "support"})
        await BatchWriter(earlier).write_batch([tool_exchange(0)], [Gap(RUN, NOON, "the disk was full")])
        await Runs(earlier).patch(RUN, ended_at=NOON + 60 * SECOND)
    finally:
        await earlier.close()
    for new in (False, True):
        if new:
            await BatchWriter(database).write_batch([tool_exchange(1)])
            await Sealer(database, SIGNING_KEYS, copies).seal("default")
        found = await verify(database, copies)
        assert (found.verdict, found.findings, found.proven, found.unproven) == ("unproven", [], int(new), 2)


async def test_a_run_that_is_gone_without_a_record_is_missed(sealed_database: Database, copies: Path) -> None:
    loader = CallReader(sealed_database, call)

    async def verify_all() -> Verification:
        await Sealer(sealed_database, SIGNING_KEYS, copies).seal("default")
        keys = SIGNING_KEYS.verifier_keys("default")
        return await RunVerifier(sealed_database, "default", loader, keys, copies).verify_project(STORE_SERVER)

    assert (await verify_all()).verdict == "verified"
    assert await Runs(sealed_database).delete("other")
    # Both exchanges of this one go to our run, and so the run is dissolved.
    await BatchWriter(sealed_database).write_batch([tool_exchange(5, run="guess")])
    await verify_all()
    await BatchWriter(sealed_database).write_batch([replace(tool_exchange(5, run=RUN), previous_run="guess")])
    found = await verify_all()
    assert (found.verdict, found.findings, found.proven) == ("verified", [], 7)
    await execute(sealed_database, "DELETE FROM runs WHERE id = $1", RUN)
    assert [(one.change, one.element[:5]) for one in (await verify_all()).findings] == [("removed", "chain")]
    await execute(
        sealed_database,
        "DELETE FROM chains WHERE incarnation = (SELECT incarnation FROM tree_leaves WHERE place = $1)",
        2,
    )
    assert {one.change for one in (await verify_all()).findings} == {"removed"}
    await execute(sealed_database, "DELETE FROM tree_leaves WHERE place = $1", 0)
    assert "leaf 0" in {one.element for one in (await verify_all()).findings}


async def test_a_chain_of_a_store_server_that_nobody_knows_proves_no_erasure(
    sealed_database: Database, copies: Path
) -> None:
    """Who has no key removes an exchange, and writes beside the signed chain one that says that it was erased."""
    removed = exchange(1).id
    stranger = uuid.uuid4()
    async with sealed_database.connection() as connection:
        incarnation = await connection.fetchval("SELECT incarnation FROM runs WHERE id = $1", RUN)
        began = await connection.fetchval(
            "DELETE FROM exchanges WHERE id = $1 RETURNING started_at", uuid.UUID(removed)
        )
        erased = {incarnation: [(uuid.UUID(removed), began, "whole")]}
        await append_erasures(connection, "default", stranger, erased, NOON)  # type: ignore[arg-type]
    found = await verify(sealed_database, copies)
    assert (found.verdict, [one.id for one in found.erasures]) == ("unproven", [removed])
    # With a leaf and a checkpoint of its own it is worse: nobody whom we trust has signed it.
    keys = SigningKeys(stranger, (Ed25519PrivateKey.generate(),))
    await Sealer(sealed_database, keys, copies / "stranger").seal("default")
    found = await verify(sealed_database, copies)
    assert [one.change for one in found.findings] == ["unsigned"]


async def test_a_run_that_a_stranger_s_chain_calls_erased_is_unproven(sealed_database: Database, copies: Path) -> None:
    async with sealed_database.connection() as connection:
        incarnation = await connection.fetchval("DELETE FROM runs WHERE id = $1 RETURNING incarnation", RUN)
        record = {incarnation: [ChainRecord(kind="erased", part="run", at=NOON)]}
        await append_records(connection, "default", uuid.uuid4(), record)
    loader, keys = CallReader(sealed_database, call), SIGNING_KEYS.verifier_keys("default")
    found = await RunVerifier(sealed_database, "default", loader, keys, copies).verify_project(STORE_SERVER)
    assert (found.verdict, found.unproven) == ("unproven", 1)


async def test_a_run_that_somebody_inserted_is_counted(sealed_database: Database, copies: Path) -> None:
    stranger = Database(sealed_database.url)
    await stranger.connect()
    try:
        await BatchWriter(stranger).write_batch([tool_exchange(6, run="planted")])
    finally:
        await stranger.close()
    assert (await verify(sealed_database, copies, "planted")).verdict == "unproven"
    loader, keys = CallReader(sealed_database, call), SIGNING_KEYS.verifier_keys("default")
    found = await RunVerifier(sealed_database, "default", loader, keys, copies).verify_project(STORE_SERVER)
    assert (found.verdict, found.unproven, found.findings) == ("unproven", 1, [])


async def test_runs_that_are_verified_together_are_found_to_be_what_each_alone_is(
    sealed_database: Database, copies: Path
) -> None:
    await execute(sealed_database, "UPDATE exchanges SET response_body = $1 WHERE id = $2", pack(b"{}"), exchange(2).id)
    keys = SIGNING_KEYS.verifier_keys("default")
    verifier = RunVerifier(sealed_database, "default", CallReader(sealed_database, call), keys, copies)
    found = await verifier.verify_many([RUN, "unknown", "other"])
    assert found == {name: await verify(sealed_database, copies, name) for name in (RUN, "other")}
    assert found[RUN].verdict == "verified"
    assert [(one.change, one.element) for one in found["other"].findings] == [
        ("altered", f"exchange {exchange(2).id} (step 1)")
    ]
