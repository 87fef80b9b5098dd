"""A witness that others wrote, aics-witness from PyPI, signs our checkpoints and refuses another history.

It needs a newer `cryptography` than the wire engine allows, so it runs in an environment of its own, and only on request:
PLAYHEAD_WITNESS=make installs it into a temporary directory, PLAYHEAD_WITNESS=DIR uses the environment in DIR.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from calls.proof.checkpoint import parse_note, parse_verifier_key
from proxy.processes.ports import free_port
from store.anchors.anchorer import ASK_EVERY
from store.anchors.rows import load_anchors
from store.anchors.targets import WitnessTarget
from store.database.connection import Database
from tests.frameworks.environments import python
from tests.store.anchors.test_anchorer import LOG_KEY, ORIGIN, make_anchorer, problem, seal
from tests.support.postgres import STORE_SERVER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def program() -> Path:
    where = os.environ.get("PLAYHEAD_WITNESS")
    if not where:
        pytest.skip(
            "PLAYHEAD_WITNESS is not set: `make` installs aics-witness, a directory names an environment that has it"
        )
    interpreter = python("aics-witness==0.1.0", limit=60) if where == "make" else Path(where) / "bin" / "python"
    return interpreter.with_name("aics-witness")


@contextmanager
def running(program: Path, directory: Path) -> Iterator[WitnessTarget]:
    """Run a witness that knows our log."""
    config, port = directory / "witness.json", free_port("127.0.0.1", 0)

    def run(*arguments: str) -> str:
        return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout

    key = run(
        "init", "--config", str(config), "--name", "witness.example.org/w1", "--listen", f"127.0.0.1:{port}"
    ).strip()
    run("add-log", "--config", str(config), "--origin", ORIGIN, "--vkey", str(LOG_KEY))
    log = directory / "log"
    with (
        log.open("wb") as written,
        subprocess.Popen([program, "serve", "--config", str(config)], stderr=written) as process,
    ):
        try:
            wait_until_connected(port, process)
            yield WitnessTarget(url=f"http://127.0.0.1:{port}", key=key)
        finally:
            process.terminate()


def wait_until_connected(port: int, process: subprocess.Popen[bytes]) -> None:
    import socket
    import time

    for _ in range(200):
        assert process.poll() is None
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            time.sleep(0.05)  # another program's start has no event
        else:
            return
    pytest.fail("the witness does not listen")


async def test_a_real_witness_signs_what_continues_and_refuses_another_history(
    database: Database, tmp_path: Path, program: Path
) -> None:
    with running(program, tmp_path) as target:
        anchorer, clock = make_anchorer(database, target)
        for size in range(1, 8):
            note = await seal(database, tmp_path / "checkpoints", size)
            await anchorer.ask_due()
            assert not anchorer.troubles("default")
            async with database.connection() as connection:
                (anchor,) = await load_anchors(connection, "default", STORE_SERVER, size)
            assert parse_note(note + anchor.content.decode()).cosigned_at(parse_verifier_key(target.key))
            clock.time += ASK_EVERY
        async with database.connection() as connection:
            for table in ("tree_leaves", "tree_tiles", "checkpoints", "chains", "chain_records", "anchors"):
                await connection.execute(f"DELETE FROM {table}")
        await seal(database, tmp_path / "other", 9)
        await anchorer.ask_due()
        assert re.search("has signed 7 leaves of .* and there are 1 here", problem(anchorer))
        for number in range(10, 19):
            await seal(database, tmp_path / "other", number)
        clock.time += 100
        await anchorer.ask_due()
        assert "that this one does not continue" in problem(anchorer)
