"""`playhead demo`, whole: the first thing that a newcomer sees."""

import asyncio
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forks import DEMO_PROGRAMS
from tests.support.postgres import memory_directory
from tests.support.service import command, surroundings


@pytest.fixture
def home() -> Iterator[Path]:
    """Outside pytest's own directories: as root Postgres runs as another user, who must be able to pass through."""
    with tempfile.TemporaryDirectory(prefix="playhead-demo-test-", dir=memory_directory()) as directory:
        Path(directory).chmod(0o711)
        yield Path(directory) / "home"


def processes_in(home: Path) -> list[str]:
    """The command lines of the processes that work in a directory."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            inside = link.readlink().is_relative_to(home)
            found += [link.with_name("cmdline").read_text().replace("\0", " ")] if inside else []
        except OSError:
            pass  # it ended while we looked
    return found


@pytest.mark.slow
async def test_a_newcomer_sees_a_recording_replayed_and_a_question_refused(home: Path, programs: Path) -> None:
    env = surroundings() | {DEMO_PROGRAMS: str(programs)}
    line = command("demo", "--home", str(home))
    process = await asyncio.create_subprocess_exec(*line, env=env, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 110)
    text = out.decode()
    assert process.returncode == 0, text
    assert "4 calls (2 model, 2 other)" in text
    assert "the same, byte for byte" in text
    assert "4 served, 0 missed, 0 live, 0 unused" in text
    assert re.search(r"stopped by status 424", text)
    assert "/body/messages/1/content" in text
    assert processes_in(home) == []
