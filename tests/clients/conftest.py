"""A foreign test suite, with an upstream that counts the requests that reach it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.demo.servers import start_server
from tests.clients.stage import CONFIG, Stage, Upstream


@pytest.fixture
def stage(tmp_path: Path, data: Path) -> Iterator[Stage]:
    """An empty suite."""
    server = start_server(Upstream)
    server.asked = []  # type: ignore[attr-defined]
    (tmp_path / "playhead.toml").write_text(CONFIG.format(port=server.server_port))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    yield Stage(directory=tmp_path, server=server, data=data)
    server.shutdown()
    server.server_close()
