"""The commands that the README and docs/ show are run, in their order, as somebody who reads along would type them."""

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proxy.demo.demo import CONFIG, prepare_directory
from proxy.demo.service import Shell
from tests.support.service import keeping

ROOT = Path(__file__).resolve().parent.parent

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""With its language: what is typed has none."""

FILE = re.compile(r"^```\w+\n# ([\w.-]+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A file that a page shows: the first line names it."""

NOT_HERE = ("git ", "cd ", "./check", "./playhead demo", "docker ", "python -m bench", "pytest ")
"""What a test cannot or need not type: the checks run this test, and the demo has a test of its own."""

ALONE = "README.md"
"""The page whose commands find nothing that runs, as a newcomer's do, and whose programs are started in earnest.

Those of the others share a store server, and are forks (`tests/support/shells.py`)."""


def commands(page: str, left_out: tuple[str, ...] = NOT_HERE) -> list[str]:
    """The lines of a page's blocks that begin with a prompt, without what follows as an answer."""
    blocks = [block for language, block in BLOCK.findall((ROOT / page).read_text("utf-8")) if not language]
    lines = [line for block in blocks for line in block.splitlines()]
    typed = [line.removeprefix("$ ").partition("  # ")[0].strip() for line in lines if line.startswith("$ ")]
    return [line for line in typed if not line.startswith(left_out)]


OF_THEIR_OWN = ("docs/incident.md",)
"""Pages whose commands are run by a test of their own, with other servers."""

PAGES = [str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page) and page not in OF_THEIR_OWN])
async def test_what_a_page_says_to_type_works(page: str, data: Path, database_url: str, programs: Path) -> None:
    shell = prepare_directory(data)
    path = shell.environment["PATH"]
    (data / "tests" / "recordings").mkdir(parents=True)
    (data / "tests" / "test_agent.py").write_text(AGENT_TEST)
    for name, content in FILE.findall((ROOT / page).read_text("utf-8")):
        (data / name).write_text(content)
    script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" + "\n".join(commands(page))
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(
            shell.background_command([sys.executable, "-m", "proxy.demo.servers"], "servers.log")
        )
        (data / "playhead.toml").write_text(CONFIG.format(**json.loads(line)))
        if page != ALONE:
            await stack.enter_async_context(keeping(data / "data", database_url))
            path = f"{programs}{os.pathsep}{path}"
        done = await asyncio.to_thread(_run_script, script, shell, path)
    assert done.returncode == 0, f"{script}\n--- said\n{done.stdout}\n{done.stderr}"


AGENT_TEST = """\
import subprocess, sys
def test_the_agent_works():
    subprocess.run([sys.executable, "agent.py"], check=True)
"""


def _run_script(script: str, shell: Shell, path: str) -> subprocess.CompletedProcess[str]:
    # As after `pip install ./clients/pytest-playhead`.
    client = str(ROOT / "clients" / "pytest-playhead" / "src")
    ports = {"PLAYHEAD_PROXY_PORT": "0", "PLAYHEAD_API_PORT": "0"}
    environment = {**shell.environment, **ports, "PATH": path, "PYTHONPATH": client}
    return subprocess.run(
        ["bash", "-c", script], cwd=shell.directory, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("page", [*PAGES, "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md"])
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8"))
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert not missing
