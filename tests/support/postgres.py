"""A real Postgres for tests: one embedded server for each test process, one fresh migrated database for each test."""

import asyncio
import itertools
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from store.database.connection import Database
from store.embedded.postgres import EmbeddedPostgresError, EmbeddedServer, ensure_server, find_bindir

TEMPLATE = "migrated"
# Nothing here outlives its test, so nothing has to reach the disk.
CARELESS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "log_min_messages": "fatal"}

_serial = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedServer]:
    """The server of this test process. It stops, and its files go, when the session ends or the process dies."""
    try:
        find_bindir()
    except EmbeddedPostgresError as error:
        pytest.skip(str(error))
    # Not pytest's own directory: that is closed to the account as which Postgres runs for root.
    base = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    base.chmod(0o711)
    try:
        with ensure_server(base / "pg", CARELESS) as server:
            create(server, TEMPLATE)
            asyncio.run(migrate(url(server, TEMPLATE)))
            yield server
    finally:
        shutil.rmtree(base)


@pytest.fixture
def database_url(postgres_server: EmbeddedServer) -> Iterator[str]:
    """The URL of a database of its own, with all tables and no rows."""
    with fresh(postgres_server) as address:
        yield address


@pytest.fixture(scope="module")
def module_database_url(postgres_server: EmbeddedServer) -> Iterator[str]:
    """The same, for a service that a whole module shares."""
    with fresh(postgres_server) as address:
        yield address


STORE_SERVER: Final = uuid.UUID("0199e2a5-0000-7000-8000-00000000feed")
"""The store server that appends to the chains of what tests write."""


@contextmanager
def fresh(server: EmbeddedServer) -> Iterator[str]:
    """The URL of a new database, which goes with the block."""
    name = f"test_{next(_serial)}"
    create(server, name, template=TEMPLATE)
    yield url(server, name)
    run(server, "dropdb", "--force", name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A prepared `Database` of its own."""
    opened = Database(database_url, STORE_SERVER)
    await opened.prepare()
    yield opened
    await opened.close()


def url(server: EmbeddedServer, name: str) -> str:
    """The URL of another database of this server."""
    return server.dsn.replace("///postgres?", f"///{name}?")


def create(server: EmbeddedServer, name: str, template: str = "template0") -> None:
    """Make a database."""
    # By copying files: without fsync the checkpoints that this takes cost less than logging each page.
    run(server, "createdb", "--strategy=file_copy", f"--template={template}", name)


def run(server: EmbeddedServer, program: str, *arguments: str) -> str:
    """Run one of Postgres' own programs against the server."""
    host = server.dsn.partition("host=")[2].partition("&")[0]
    command = [str(server.bindir / program), "-h", host, "-U", "playhead", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def migrate(dsn: str) -> None:
    """Make our tables in a database."""
    opened = Database(dsn)
    await opened.prepare()
    await opened.close()
