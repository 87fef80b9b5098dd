"""The commands in docs/pytest.md work with the plugin installed as usual."""

import re
import shlex
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.clients.suite_directory import ROOT, SOURCES, SuiteDirectory
from tests.frameworks.environments import python
from tests.test_docs import BLOCK, FILE

PAGE = (ROOT / "docs" / "pytest.md").read_text("utf-8")


def documented_commands() -> list[str]:
    blocks = [block for language, block in BLOCK.findall(PAGE) if not language]
    return re.findall(r"^\$ (pytest .*)$", "\n".join(blocks), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_in_an_environment_that_holds_nothing_of_playhead_s_but_the_plugin(
    suite: SuiteDirectory, tmp_path: Path
) -> None:
    interpreter = python("hatchling>=1.27", "pytest>=8", "requests>=2.32")
    environment = {
        **suite.environment(PYTHONPATH=str(install(interpreter, tmp_path))),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "",
        # No file of the suite is written again: what is imported is compiled once, not by each command.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    for name, content in FILE.findall(PAGE):
        suite.write(name, content)
    lines = documented_commands()
    assert len(lines) >= 4
    for line in lines:
        words = [str(interpreter), "-m", *shlex.split(line)]
        # In isolation pytest is started again by Playhead itself, which is no fork then.
        more = {} if "--block-network" in words else {"PLAYHEAD_COMMAND": suite.forked_playhead}
        ran = subprocess.run(
            words, cwd=suite.directory, env=environment | more, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
    assert len(suite.upstream_requests) == 3


def install(interpreter: Path, place: Path) -> Path:
    """The distribution, built and unpacked like an installer does: packages and entry points."""
    build: list[str | Path] = [interpreter, "-m", "hatchling", "build", "-t", "wheel", "-d", place / "wheels"]
    subprocess.run(build, cwd=SOURCES.parent, check=True, capture_output=True, timeout=60)
    [wheel] = (place / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place / "installed")
    return place / "installed"


def test_it_asks_for_nothing_but_pytest() -> None:
    project = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["pytest>=8"]
