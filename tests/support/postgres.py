"""A real Postgres for tests: one embedded server for each test process, and a new migrated database for each test."""

import asyncio
import datetime as dt
import fcntl
import itertools
import os
import select
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from store.database.asyncio_engine import AsyncEngine
from store.database.connection import Database
from store.embedded.postgres import EmbeddedPostgresError, EmbeddedServer, ensure_server, find_bindir
from store.ingest.partitions import Partitions
from tests.support.clusters import use_copies

TEMPLATE = "migrated"
READY = "ready"
"""A template that has the partitions of these days as well: to make them takes a store server longer than all else of its start."""

SAMPLES_DAY: Final = dt.date(2026, 11, 21)
"""The day of most exchanges that tests make. `TEMPLATE` has its partitions: to make them takes longer than to store an exchange."""

# Nothing here outlives its test, so nothing has to reach the disk.
CARELESS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "log_min_messages": "fatal"}

_serial = itertools.count()

use_copies()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedServer]:
    """The server of this test process. It stops, and its files are deleted, when the session ends or the process dies."""
    with running_server() as server:
        yield server


@contextmanager
def running_server() -> Iterator[EmbeddedServer]:
    """A server with the migrated databases `TEMPLATE` and `READY`.

    What keeps connections while no event loop of theirs runs needs one of its own: a session of Postgres that waits until
    its client reads lets nobody drop a database.
    """
    try:
        find_bindir()
    except EmbeddedPostgresError as error:
        pytest.skip(str(error))
    # Not pytest's own directory: that is closed to the account as which Postgres runs for root.
    base = Path(tempfile.mkdtemp(prefix=PREFIX, dir=memory_directory()))
    base.chmod(0o711)
    try:
        with (base / OWNER).open("w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            with ensure_server(base / "pg", CARELESS) as server, console(server):
                create(server, TEMPLATE)
                asyncio.run(migrate(url(server, TEMPLATE)))
                create(server, READY, template=TEMPLATE)
                asyncio.run(create_partitions(url(server, READY)))
                asyncio.run(create_partitions(url(server, TEMPLATE), SAMPLES_DAY))
                yield server
    finally:
        # Where it takes long to stop, it still writes: the next process removes what that leaves.
        shutil.rmtree(base, ignore_errors=True)


PREFIX: Final = "playhead-test-postgres-"
OWNER: Final = "owner"
"""A file in a server's directory that its test process keeps locked."""


def memory_directory() -> Path | None:
    """Return a directory in memory if there is room: copying a database there takes a tenth of the time."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK | os.X_OK):
        return None
    # What a test process that was killed has left would take memory for ever.
    for owner in shared.glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError), owner.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - owner.stat().st_mtime > 60:
                shutil.rmtree(owner.parent, ignore_errors=True)
    return shared if shutil.disk_usage(shared).free > 4 << 30 else None


@pytest.fixture
def database_url(request: pytest.FixtureRequest, postgres_server: EmbeddedServer) -> Iterator[str]:
    """The URL of a new database with all tables and no rows, prepared for a store server, unless the test writes
    itself.
    """
    with fresh(postgres_server, TEMPLATE if "database" in request.fixturenames else READY) as address:
        yield address


@pytest.fixture(scope="module")
def module_database_url(postgres_server: EmbeddedServer) -> Iterator[str]:
    """The same, for a service that the tests of a module share."""
    with fresh(postgres_server, READY) as address:
        yield address


STORE_SERVER: Final = uuid.UUID("0199e2a5-0000-7000-8000-00000000feed")
"""The store server to whose chains tests append."""


@contextmanager
def fresh(server: EmbeddedServer, template: str = TEMPLATE) -> Iterator[str]:
    """Create a database, yield its URL, and drop it at the end of the block."""
    name = f"test_{next(_serial)}"
    create(server, name, template=template)
    yield url(server, name)
    drop(server, name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A prepared `Database` on a new database."""
    opened = Database(database_url, STORE_SERVER)
    opened.engine = await share_engine(opened)
    await opened.connect()
    yield opened
    await opened.close()


_sharing: list[Database] = []
"""The database whose engine all tests share."""


async def share_engine(database: Database) -> AsyncEngine:
    """Share one engine between all tests: compiling a statement takes longer than executing it."""
    if not _sharing:
        _sharing.append(database)
    # It connects to the address that its database has at the time. Nothing of another test's loop may be in its pool.
    _sharing[0].url = database.url
    await _sharing[0].engine.dispose()
    return _sharing[0].engine


def url(server: EmbeddedServer, name: str) -> str:
    """Return the URL of another database of this server."""
    return server.dsn.replace("///postgres?", f"///{name}?")


def create(server: EmbeddedServer, name: str, template: str = "template0") -> None:
    """Create a database."""
    # By copying files: without fsync the checkpoints that this takes cost less than logging each page.
    execute(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")


def drop(server: EmbeddedServer, name: str) -> None:
    """Drop a database with its sessions, which get five seconds to end; a busy machine may need more."""
    for _ in range(5):
        try:
            return execute(server, f"DROP DATABASE {name} WITH (FORCE)")
        except StatementFailed as error:
            if "is being accessed by other users" not in str(error):
                raise
    return execute(server, f"DROP DATABASE {name} WITH (FORCE)")


STATEMENT_SECONDS: Final = 60

_consoles: dict[EmbeddedServer, subprocess.Popen[str]] = {}
"""A psql process for each server: starting one for each statement takes longer than the statement."""


@contextmanager
def console(server: EmbeddedServer) -> Iterator[None]:
    """Let `execute` reach the server inside the block."""
    host = server.dsn.partition("host=")[2].partition("&")[0]
    line = [str(server.bindir / "psql"), "-XqAt", "-h", host, "-U", "playhead", "postgres"]
    process = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    with process:
        _consoles[server] = process
        yield
        del _consoles[server]


class StatementFailed(Exception):
    """Postgres refused a statement."""


def execute(server: EmbeddedServer, statement: str) -> None:
    """Execute a statement that returns nothing."""
    process = _consoles[server]
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{statement};\n\\echo done\n")
    process.stdin.flush()
    said = b""
    while not said.endswith(b"done\n"):
        # What waits for other sessions waits without an end: it must say for whom, and not be waited for again.
        if not select.select([process.stdout], [], [], STATEMENT_SECONDS)[0]:
            sessions = run(server, "psql", "-XAc", "SELECT * FROM pg_stat_activity", "postgres")
            process.kill()
            raise TimeoutError(f"{statement}: no answer in {STATEMENT_SECONDS} s. The sessions:\n{sessions}")
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            raise StatementFailed(f"{statement}: psql has ended: {said.decode()}")
        said += piece
    if b"ERROR:" in said or b"FATAL:" in said:
        raise StatementFailed(f"{statement}: {said.decode()}")


def run(server: EmbeddedServer, program: str, *arguments: str) -> str:
    """Run one of Postgres's own programs against the server."""
    host = server.dsn.partition("host=")[2].partition("&")[0]
    command = [str(server.bindir / program), "-h", host, "-U", "playhead", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=STATEMENT_SECONDS).stdout


async def migrate(dsn: str) -> None:
    """Create Playhead's tables in a database."""
    opened = Database(dsn)
    await opened.prepare()
    await opened.close()


async def create_partitions(dsn: str, day: dt.date | None = None) -> None:
    """Create the partitions of a day, or those that a store server creates when it starts."""
    opened = Database(dsn)
    await opened.connect()
    partitions = Partitions(opened)
    await (partitions.create_missing([day]) if day else partitions.create_upcoming(dt.datetime.now(dt.UTC).date()))
    await opened.close()
