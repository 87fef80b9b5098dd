"""The same against a server that speaks the protocol of S3, with mistakes in the settings and a process that is killed."""

import datetime as dt
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from store.backup.restore import restore_backup
from store.backup.write_backup import write_backup
from store.database.blobs import BodyUnavailable
from store.database.connection import Database
from store.embedded.postgres import EmbeddedServer
from store.objects.body_objects import BodyObjects
from store.objects.target import ObjectTarget
from store.query.call_reader import CallReader
from tests.store.objects.test_body_objects import (
    THRESHOLD,
    conversation,
    object_files,
    object_storage,
    read_exchanges,
    store,
)
from tests.store.objects.test_collection import eraser
from tests.store.sums.test_run_sums import derive
from tests.support.postgres import create, run, url

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server with the bucket `recordings`."""
    from moto.server import ThreadedMotoServer  # not while tests are collected, which each worker does

    moto = ThreadedMotoServer("127.0.0.1", 0)
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    credential = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    httpx2.put(
        f"{url}/recordings", headers={"authorization": credential}, trust_env=False, timeout=60
    ).raise_for_status()
    yield url
    moto.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def s3_storage(
    database: Database, directory: Path, server: str, url: str = "s3://recordings/some/prefix"
) -> BodyObjects:
    keys = str(directory / "keys" / "objects")
    return BodyObjects(database, ObjectTarget(url=url, endpoint=server, threshold=THRESHOLD, keys=keys), pause=0)


async def _paths(storage: BodyObjects, key_id: bytes) -> list[str]:
    return [one.path async for page in storage.bucket.list(f"{key_id.hex()}/") for one in page]


async def test_bodies_are_in_a_bucket_and_come_back(database: Database, tmp_path: Path, server: str) -> None:
    database.objects = storage = s3_storage(database, tmp_path, server)
    assert await storage.check() is None
    made = conversation()
    await store(database, made)
    key_id = storage.keys.key("default").id
    assert len(await _paths(storage, key_id)) == storage.written == 6
    database.objects = storage = s3_storage(database, tmp_path, server)
    assert await read_exchanges(database) == made
    lost = (await _paths(storage, key_id))[0]
    await storage.bucket.delete(lost)
    calls = (await CallReader(database, derive).run_calls("night")).items
    reasons = {warning for call in calls for warning in call["warnings"]}
    assert reasons == {f"the object {lost} is missing in s3://recordings/some/prefix"}
    report = await eraser(database).erase_run("night")
    assert report is not None
    # Deleting what is not there succeeds.
    assert report.objects == 6
    assert await _paths(storage, key_id) == []
    assert await storage.collect(["default"]) == 0


async def test_a_restored_copy_reads_what_is_in_the_bucket(
    database: Database, database_url: str, postgres_server: EmbeddedServer, tmp_path: Path, server: str
) -> None:
    data = tmp_path / "data"
    (data / "spool").mkdir(parents=True)
    (data / "version").write_bytes(b"1\n")
    database.objects = s3_storage(database, data, server)
    made = conversation("copied")
    await store(database, made)
    file, now = tmp_path / "backup.tar", dt.datetime(2026, 11, 25, tzinfo=dt.UTC)
    await write_backup(file, data, database_url, version="test", now=now, report=lambda _: None)
    create(postgres_server, "from_bucket")
    copy = Database(url(postgres_server, "from_bucket"))
    try:
        await restore_backup(file, tmp_path / "restored", url(postgres_server, "from_bucket"), report=lambda _: None)
        await copy.prepare()
        copy.objects = s3_storage(copy, tmp_path / "restored", server)
        assert await read_exchanges(copy, "copied") == made
    finally:
        await copy.close()
        run(postgres_server, "dropdb", "--force", "from_bucket")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://no-such-bucket/x", "has no such bucket: create it, or correct [objects] url"),
        ("s3://recordings", "does not answer: check that it runs"),
    ],
)
async def test_a_mistake_is_one_sentence_and_bodies_go_into_the_database(
    database: Database, tmp_path: Path, server: str, url: str, words: str
) -> None:
    address = "http://127.0.0.1:9" if "answer" in words else server
    database.objects = storage = s3_storage(database, tmp_path, address, url)
    why = await storage.check()
    assert why is not None
    assert words in why
    assert "\n" not in why
    made = conversation(turns=1)
    await store(database, made)
    assert await read_exchanges(database) == made
    assert storage.counts()["objects_failed_total"] == 2


async def test_wrong_credentials_are_one_sentence(
    database: Database, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpx2.post(f"{server}/moto-api/reset-auth", content=b"0", trust_env=False, timeout=60).raise_for_status()
    try:
        storage = s3_storage(database, tmp_path, server)
        why = await storage.check()
    finally:
        httpx2.post(
            f"{server}/moto-api/reset-auth", content=b"Infinity", trust_env=False, timeout=60
        ).raise_for_status()
    assert why == (
        "s3://recordings/some/prefix refuses these credentials: check AWS_ACCESS_KEY_ID and the like in the environment of Playhead"
    )


async def test_an_unreachable_server_is_temporary(database: Database, tmp_path: Path, server: str) -> None:
    database.objects = s3_storage(database, tmp_path, server)
    made = conversation(turns=1)
    await store(database, made)
    database.objects = s3_storage(database, tmp_path, "http://127.0.0.1:9")
    with pytest.raises(BodyUnavailable, match=r"cannot be loaded: .* does not answer") as error:
        await CallReader(database, derive).exchange(made[0].id)
    assert error.value.is_temporary


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from store.database.connection import Database
from store.ingest import batch_writer
from tests.store.objects.test_body_objects import conversation, object_storage, store

async def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    database = Database(sys.argv[1])
    await database.connect()
    database.objects = object_storage(database, Path(sys.argv[2]))
    batch_writer.lock_objects = kill
    await store(database, conversation(turns=1))

asyncio.run(main())
"""


async def test_a_process_that_is_killed_before_the_row_leaves_an_object_that_is_used_or_goes(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", textwrap.dedent(KILLED), database_url, str(tmp_path)]
    killed = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, timeout=60)  # noqa: ASYNC221
    assert killed.returncode == -signal.SIGKILL
    left = object_files(tmp_path)
    assert len(left) == 2
    assert await read_exchanges(database) == []
    # The spool is drained again.
    database.objects = storage = object_storage(database, tmp_path)
    made = conversation(turns=1)
    await store(database, made)
    assert (object_files(tmp_path), storage.written) == (left, 0)
    database.objects = object_storage(database, tmp_path)
    assert await read_exchanges(database) == made
