"""A foreign test suite, with an upstream that counts the requests that reach it."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from proxy.demo.servers import start_server
from tests.clients.suite_directory import CONFIG, FORKING, SuiteDirectory, Upstream
from tests.support.shared import shared_process


@pytest.fixture(scope="session")
def forks() -> Iterator[Path]:
    """A directory with the sockets of the servers that fork pytest and Playhead (`tests/clients/forking.py`)."""
    with tempfile.TemporaryDirectory(prefix="playhead-forks-") as place, ExitStack() as running:
        for kind in ("pytest", "playhead"):
            path = running.enter_context(shared_process(kind, [sys.executable, str(FORKING), kind]))
            (Path(place) / kind).symlink_to(path)
        yield Path(place)


@pytest.fixture
def suite(tmp_path: Path, forks: Path, forking_playhead: Path) -> Iterator[SuiteDirectory]:
    """An empty suite."""
    server = start_server(Upstream)
    server.asked = []  # type: ignore[attr-defined]
    (tmp_path / "playhead.toml").write_text(CONFIG.format(port=server.server_port))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    yield SuiteDirectory(directory=tmp_path, server=server, data=forks / "d", forks=forks, playhead=forking_playhead)
    server.shutdown()
    server.server_close()
