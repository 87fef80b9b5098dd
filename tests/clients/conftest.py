"""A foreign test suite, with an upstream that counts the requests that reach it."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from proxy.demo.servers import start_server
from tests.clients.stage import CONFIG, FORKING, Stage, Upstream


@pytest.fixture(scope="session")
def forks() -> Iterator[Path]:
    """The servers that fork pytest and Playhead (`tests/clients/forking.py`), for all suites of this process."""
    # The path of a socket may have a hundred letters, and pytest's directories have more.
    with tempfile.TemporaryDirectory(prefix="playhead-forks-") as place, ExitStack() as running:
        for kind in ("pytest", "playhead"):
            command = [sys.executable, str(FORKING), "serve", kind, f"{place}/{kind}"]
            process = running.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place)
            )
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield Path(place)


@pytest.fixture
def stage(tmp_path: Path, forks: Path) -> Iterator[Stage]:
    """An empty suite."""
    server = start_server(Upstream)
    server.asked = []  # type: ignore[attr-defined]
    (tmp_path / "playhead.toml").write_text(CONFIG.format(port=server.server_port))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    yield Stage(directory=tmp_path, server=server, data=forks / "d", forks=forks)
    server.shutdown()
    server.server_close()
