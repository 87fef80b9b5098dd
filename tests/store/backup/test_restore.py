"""A backup restored elsewhere has the same rows in every table, and what is made anew comes out as it was."""

import asyncio
import datetime as dt
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from store.backup.archive import ArchiveWriter, BadArchive, Member, read_members
from store.backup.files import restore_piece
from store.backup.restore import NotEmpty, restore_backup
from store.backup.tables import COLUMNS, MADE_ANEW
from store.backup.write_backup import write_backup
from store.database.blobs import BodyUnavailable
from store.database.connection import MIGRATION_LOCK, Database, DatabaseUnusable
from store.embedded.postgres import EmbeddedServer
from tests.store.objects.test_body_objects import conversation, object_storage, read_exchanges, store
from tests.store.running_store import RunningStore, import_bundle, open_store
from tests.support.postgres import create, run, url
from tests.support.service import command

NOW = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A backup, and what was in the database when it was made."""

    file: Path
    rows: dict[str, list[str]]


@pytest.fixture
def empty_database_url(postgres_server: EmbeddedServer) -> Iterator[str]:
    create(postgres_server, "restored")
    yield url(postgres_server, "restored")
    run(postgres_server, "dropdb", "--force", "restored")


GROUP_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def rows_by_table(address: str) -> dict[str, list[str]]:
    """Every row of every table, as text, sorted."""
    connection = await asyncpg.connect(address.replace("postgresql+asyncpg", "postgresql"))
    try:
        tables = dict.fromkeys(row["table"] for row in await connection.fetch(COLUMNS))
        return {
            table: sorted(row[0] for row in await connection.fetch(f"SELECT t::text FROM {table} t"))
            for table in tables
        }
    finally:
        await connection.close()


@pytest.fixture
async def copy(tmp_path: Path, database: Database, database_url: str) -> Copy:
    data = tmp_path / "data"
    for name, content in {
        "version": b"1\n",
        "keys/x.key": b"k",
        "store.json": b"{}",
        "pg/file": b"",
        "log/l": b"",
    }.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
    async with open_store(data / "spool", database) as running_store:
        await import_bundle(running_store)
        await _settle(running_store)
    rows = await rows_by_table(database_url)
    file = tmp_path / "backup.tar"
    summary = await write_backup(file, data, database_url, version="test", now=NOW, report=lambda _: None)
    assert summary.rows == {table: len(found) for table, found in rows.items() if table not in MADE_ANEW}
    return Copy(file=file, rows=rows)


async def _settle(running_store: RunningStore) -> None:
    await running_store.followers.wait_until_caught_up()


async def test_every_row_comes_back_and_the_rest_is_made_anew(
    copy: Copy, tmp_path: Path, empty_database_url: str
) -> None:
    root = tmp_path / "restored"
    summary = await restore_backup(copy.file, root, empty_database_url, report=lambda _: None)
    assert summary.created_at == "2026-11-24T00:00:00+00:00"
    assert {path.name for path in root.iterdir()} >= {"version", "keys", "spool"}
    assert not {"store.json", "pg"} & {path.name for path in root.iterdir()}
    assert (root / "keys" / "x.key").stat().st_mode & 0o777 == 0o600
    restored = await rows_by_table(empty_database_url)
    for table, rows in copy.rows.items():
        assert restored[table] == ([] if table in MADE_ANEW else rows), table
    second = Database(empty_database_url)
    await second.prepare()
    try:
        async with open_store(root / "spool", second) as running_store:
            await _settle(running_store)
            made = await rows_by_table(empty_database_url)
            for table in ("text_groups", "call_sums", "run_totals"):
                # A group of texts gets another id, and is otherwise the same.
                assert [GROUP_ID.sub("", row) for row in made[table]] == [
                    GROUP_ID.sub("", row) for row in copy.rows[table]
                ], table
    finally:
        await second.close()


async def test_what_is_in_the_way_is_refused_and_nothing_is_changed(
    copy: Copy, tmp_path: Path, database_url: str, empty_database_url: str
) -> None:
    root = tmp_path / "restored"
    before = await rows_by_table(database_url)
    with pytest.raises(DatabaseUnusable, match="already has tables of Playhead"):
        await restore_backup(copy.file, root, database_url, report=lambda _: None)
    assert await rows_by_table(database_url) == before
    root.mkdir()
    (root / "notes").write_text("mine")
    with pytest.raises(NotEmpty, match="restored is not empty"):
        await restore_backup(copy.file, root, empty_database_url, report=lambda _: None)
    (root / "notes").unlink()
    damaged = tmp_path / "damaged.tar"
    whole = copy.file.read_bytes()
    damaged.write_bytes(whole[: len(whole) * 2 // 3])
    newer = write_altered_backup(copy.file, tmp_path / "newer.tar", {"schema": "9999"})
    invalid = write_altered_backup(copy.file, tmp_path / "invalid.tar", {"columns": "all"})
    for file, reason in (
        (damaged, "ends early"),
        (newer, "version 9999, which a newer Playhead has made"),
        (invalid, r"tables.json is invalid \(Expected `object`"),
    ):
        with pytest.raises(BadArchive, match=reason):
            await restore_backup(file, root, empty_database_url, report=lambda _: None)
    hostile = write_altered_backup(
        copy.file,
        tmp_path / "hostile.tar",
        {"partitions": [{"name": "calls_20261124", "parent": "calls", "bound": "DEFAULT; DROP TABLE runs"}]},
    )
    with pytest.raises(BadArchive, match="that no Playhead makes"):
        await restore_backup(hostile, root, empty_database_url, report=lambda _: None)
    assert await rows_by_table(empty_database_url) == {}
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    await restore_backup(copy.file, root, empty_database_url, report=lambda _: None)  # an empty directory is taken


def write_altered_backup(source: Path, target: Path, change: dict[str, Any]) -> Path:
    """The same backup with another tables.json, and digests that fit."""
    with target.open("wb") as out:
        writer = None
        for member in read_members(source):
            if writer is None:
                writer = ArchiveWriter(out, json.loads(member.data))
            elif member.name == "tables.json":
                writer.add_json("tables.json", json.loads(member.data) | change)
            else:
                writer.add(*member)
        assert writer
        writer.finish()
    return target


@pytest.mark.parametrize("name", ["files/../outside/0000000", "files/pg/data/0000000", "files/0000000"])
def test_no_file_is_written_outside_its_place(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(BadArchive, match="belongs to no data directory"):
        restore_piece(root, Member(name, b"x"))
    assert os.listdir(tmp_path) == ["root"]


async def test_a_restored_copy_reads_what_is_in_object_storage(
    tmp_path: Path, database: Database, database_url: str, empty_database_url: str
) -> None:
    data, bucket = tmp_path / "data", f"file://{tmp_path}/bucket"
    (data / "spool").mkdir(parents=True)
    (data / "version").write_bytes(b"1\n")
    database.objects = object_storage(database, data, url=bucket)
    made = conversation()
    await store(database, made)
    file = tmp_path / "backup.tar"
    await write_backup(file, data, database_url, version="test", now=NOW, report=lambda _: None)
    assert made[0].request.body.data[-2000:-1000] not in file.read_bytes()
    await restore_backup(file, tmp_path / "restored", empty_database_url, report=lambda _: None)
    copy = Database(empty_database_url)
    await copy.prepare()
    try:
        # With the keys of the backup, and the objects where they were.
        copy.objects = object_storage(copy, tmp_path / "restored", url=bucket)
        assert await read_exchanges(copy) == made
        shutil.rmtree(tmp_path / "bucket")
        copy.objects = object_storage(copy, tmp_path / "restored", url=bucket)
        with pytest.raises(BodyUnavailable, match="is missing in"):
            await read_exchanges(copy)
    finally:
        await copy.close()


async def test_what_a_killed_restore_left_is_removed_and_what_runs_is_not(
    copy: Copy, tmp_path: Path, empty_database_url: str
) -> None:
    killed, running = tmp_path / ".restored.restore-1", tmp_path / ".restored.restore-2"
    for directory in (killed, running):
        directory.mkdir()
        (directory / "half").write_bytes(b"prompt")
    handle = os.open(running, os.O_RDONLY)
    said: list[str] = []
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        await restore_backup(copy.file, tmp_path / "restored", empty_database_url, report=said.append)
    finally:
        os.close(handle)
    assert (killed.exists(), running.exists()) == (False, True)
    assert said[0] == f"removed {killed}, which a restore that was killed had left"


def leftovers_in(directory: Path) -> list[Path]:
    return list(directory.glob(".restored.restore-*"))


async def test_a_restore_that_is_killed_leaves_nothing_that_is_taken_for_a_store(
    tmp_path: Path, copy: Copy, empty_database_url: str
) -> None:
    root = tmp_path / "restored"
    line = command("restore", str(copy.file), "--data", str(root), "--database-url", empty_database_url)
    connection = await asyncpg.connect(empty_database_url.replace("postgresql+asyncpg", "postgresql"))
    try:
        # The restore waits for this lock in its transaction, after it has filled the directory beside its place.
        await connection.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
        process = await asyncio.create_subprocess_exec(*line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        async with asyncio.timeout(60):
            # Postgres tells nobody that somebody waits.
            while not await connection.fetchval(
                "SELECT pg_sleep(0.05), EXISTS (SELECT FROM pg_locks WHERE NOT granted)", column=1
            ):
                pass
        process.kill()
        await process.wait()
    finally:
        await connection.close()
    [leftover] = leftovers_in(tmp_path)
    assert not root.exists()
    assert await rows_by_table(empty_database_url) == {}
    assert (leftover / "keys" / "x.key").read_bytes() == b"k"
    said: list[str] = []
    await restore_backup(copy.file, root, empty_database_url, report=said.append)
    assert said[0] == f"removed {leftover}, which a restore that was killed had left"
    assert leftovers_in(tmp_path) == []
    assert (await rows_by_table(empty_database_url))["exchanges"] == copy.rows["exchanges"]
