"""The commands that the README and docs/ show are run, in their order, as somebody who reads along would type them."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from proxy.demo.demo import CONFIG, prepare_directory
from proxy.demo.service import Shell
from tests.support.forks import SCRIPT
from tests.support.service import keeping

ROOT = Path(__file__).resolve().parent.parent

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""With its language: what is typed has none."""

FILE = re.compile(r"^```\w+\n# ([\w.-]+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A file that a page shows: the first line names it."""

NOT_HERE = ("git ", "cd ", "./check", "./playhead demo", "docker ", "python -m bench", "pytest ")
"""What a test cannot or need not type: the checks run this test, and the demo has a test of its own."""

ALONE = "README.md"
"""The page whose commands find nothing that runs, as a newcomer's do, and are started in earnest; what stays ready for the next is used.

Those of the others share a store server, in which pages have projects of their own, and are forks, as agents are on all
pages (`tests/support/shells.py`)."""


def commands(page: str, left_out: tuple[str, ...] = NOT_HERE) -> list[str]:
    """The lines of a page's blocks that begin with a prompt, without what follows as an answer."""
    blocks = [block for language, block in BLOCK.findall((ROOT / page).read_text("utf-8")) if not language]
    lines = [line for block in blocks for line in block.splitlines()]
    typed = [line.removeprefix("$ ").partition("  # ")[0].strip() for line in lines if line.startswith("$ ")]
    return [line for line in typed if not line.startswith(left_out)]


OF_THEIR_OWN = ("docs/incident.md",)
"""Pages whose commands are run by a test of their own, with other servers."""

PAGES = [str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def config(module_data: Path) -> AsyncIterator[str]:
    """A configuration that leads to servers for the demo's agent."""
    shell = prepare_directory(module_data)
    async with shell.background_command([sys.executable, "-m", "proxy.demo.servers"], "servers.log") as line:
        yield CONFIG.format(**json.loads(line))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_data(module_data: Path, module_database_url: str, config: str) -> AsyncIterator[Path]:
    """A data directory whose store server runs."""
    async with keeping(module_data / "data", module_database_url):
        yield module_data / "data"


def _prepare_pages(pages: Sequence[str], data: Path, config: str) -> Shell:
    """A directory with the files that pages show or ask for."""
    shell = prepare_directory(data)
    (data / "tests" / "recordings").mkdir(parents=True)
    (data / "tests" / "test_agent.py").write_text(AGENT_TEST)
    for page in pages:
        for name, content in FILE.findall((ROOT / page).read_text("utf-8")):
            assert not (data / name).exists(), f"{page} shows another {name}"
            (data / name).write_text(content)
    (data / "playhead.toml").write_text(config)
    return shell


TOGETHER = (
    ("docs/ci.md", "docs/compare.md", "docs/fixtures.md", "docs/forks.md"),
    ("docs/check.md", "docs/isolation.md", "docs/proof.md", "docs/trace-format.md", "docs/view.md"),
)
"""Pages that are typed one after the other, in one directory and project. What several say to record first is recorded once."""

READ_TOGETHER = [
    *TOGETHER,
    *(
        (page,)
        for page in PAGES
        if commands(page) and page not in {ALONE, *OF_THEIR_OWN, *(page for pages in TOGETHER for page in pages)}
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pages", READ_TOGETHER, ids=[" ".join(pages) for pages in READ_TOGETHER])
async def test_what_pages_say_to_type_works(
    pages: tuple[str, ...], data: Path, config: str, shared_data: Path, programs: Path
) -> None:
    shell = _prepare_pages(pages, data, config)
    environment = {
        "PATH": f"{programs}{os.pathsep}{shell.environment['PATH']}",
        "PLAYHEAD_DATA": str(shared_data),
        "PLAYHEAD_PROJECT": Path(pages[0]).stem,
    }
    lines = list(dict.fromkeys(line for page in pages for line in commands(page)))
    await asyncio.to_thread(_run_commands, lines, shell, environment)


@pytest.mark.parametrize("pages", TOGETHER, ids=[" ".join(pages) for pages in TOGETHER])
def test_no_page_needs_what_only_another_one_made(pages: tuple[str, ...]) -> None:
    names_by_page = {page: {name for line in commands(page) for name in made_names(line)} for page in pages}
    for page in pages:
        others = set().union(*(names_by_page[other] for other in pages if other != page)) - names_by_page[page]
        used = {word for line in commands(page) for word in line.split()}
        assert not used & others


def made_names(line: str) -> list[str]:
    """The runs and files that a command names as what it makes."""
    return re.findall(r"(?:--run|-o|>) (\S+)", line)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_what_the_readme_says_to_type_works_for_a_newcomer(data: Path, config: str, programs: Path) -> None:
    shell = _prepare_pages([ALONE], data, config)
    # First on the PATH. All of `playhead` is started in earnest, but for the token that each of five lines asks for.
    (data / "agents").mkdir()
    (data / "agents" / "python").symlink_to(programs / "python")
    (data / "agents" / "playhead").write_text(
        f'#!/bin/sh\ncase $1 in token) exec {programs}/playhead "$@" ;; *) exec {SCRIPT} "$@" ;; esac\n'
    )
    (data / "agents" / "playhead").chmod(0o755)
    environment = {
        "PATH": f"{data / 'agents'}{os.pathsep}{shell.environment['PATH']}",
        # As where nobody has switched it off. What is ready ends with the directory.
        "PLAYHEAD_STORE_IDLE": "60",
        "CI": "",
    }
    await asyncio.to_thread(_run_commands, commands(ALONE), shell, environment)


AGENT_TEST = """\
import subprocess, sys
def test_the_agent_works():
    subprocess.run([sys.executable, "agent.py"], check=True)
"""


def _run_commands(lines: Sequence[str], shell: Shell, environment: Mapping[str, str]) -> None:
    """Run commands of pages in their directory."""
    script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" + "\n".join(lines)
    # As after `pip install ./clients/pytest-playhead`.
    client = str(ROOT / "clients" / "pytest-playhead" / "src")
    ports = {"PLAYHEAD_PROXY_PORT": "0", "PLAYHEAD_API_PORT": "0"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=shell.directory,
        env={**shell.environment, **ports, "PYTHONPATH": client, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n--- said\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [*PAGES, "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md"])
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8"))
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert not missing
