"""Fixtures of the drills: a shared Postgres, and a prepared cluster that a drill can copy and kill."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.embedded.postgres import EmbeddedServer, ensure_server
from tests.support.postgres import create_partitions, memory_directory, migrate


@pytest.fixture(autouse=True)
def _linux() -> None:
    if sys.platform != "linux":
        pytest.skip("drills kill, stop and confine processes as Linux does")


@pytest.fixture(scope="session")
def cluster(postgres_server: EmbeddedServer) -> Iterator[Path]:
    """A stopped embedded Postgres with Playhead's tables: creating one takes longer than a drill."""
    place = Path(tempfile.mkdtemp(prefix="playhead-test-", dir=memory_directory()))
    if os.geteuid() == 0:
        place.chmod(0o711)
    server = ensure_server(place / "pg", {"fsync": "off"})
    try:
        asyncio.run(migrate(server.dsn))
        asyncio.run(create_partitions(server.dsn))
    finally:
        # Its files are copied: it must have stopped, however busy the machine is.
        server.close(60)
    yield place / "pg"
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def data_with_postgres(data: Path, cluster: Path) -> Path:
    """A data directory with an embedded Postgres that can be started."""
    data.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700)
    subprocess.run(["cp", "-a", cluster, data / "pg"], check=True)
    return data
