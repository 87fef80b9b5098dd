"""The case that docs/incident.md tells is run from start to end, command by command, as the page shows it."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from proxy.demo.service import Shell
from tests.support.service import keeping
from tests.test_docs import FILE, ROOT, commands

PAGE = "docs/incident.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_incident_is_found_fixed_varied_and_fixed_again(
    data: Path, database_url: str, programs: Path
) -> None:
    home = data.parent / "incident"
    shutil.copytree(ROOT / "docs" / "incident", home)
    shell = Shell(directory=home)
    said: list[str] = []
    # git apply would look for a repository above; the files of this one are copied without it.
    more = {"GIT_CEILING_DIRECTORIES": str(home.parent)}
    more["PATH"] = f"{programs}{os.pathsep}{shell.environment['PATH']}"
    async with (
        shell.background_command([sys.executable, "servers.py", "."], "servers.log") as origin,
        keeping(home / "data", database_url),
    ):
        for line in commands(PAGE, left_out=()):
            process = await asyncio.create_subprocess_exec(
                *("bash", "-c", line),
                cwd=home,
                env=shell.environment | more | {"MODEL": origin.strip()},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await process.communicate()
            assert process.returncode == 0, f"{line}\n{output.decode()}"
            said.append(output.decode())
    recorded, replayed, checked, _, fixed, varied, shown, again, _, held, _, judged, _, unchanged, _, changed = said
    assert recorded.startswith("I deleted record R-1024.")
    assert "was right: every call was answered from the recording" in replayed
    assert 'delete_record/id is "R-1024", but the user\'s text has "R-1042"' in checked
    assert "passed" in fixed
    assert "smallest variation that breaks: deletes what the user named\n  one missing, step 2 /records/1" in varied
    assert "was right" in shown
    assert "1 broken" in again
    assert "8 variations: 8 held" in held
    assert "says what was done: pass" in judged
    assert unchanged.startswith("deletes: unchanged")
    assert changed.startswith("deletes: changed")
    override = json.loads((home / "perturb-incident" / "override-1.json").read_bytes())["override"]
    assert override[0] == {"step": 2, "patch": [{"op": "remove", "path": "/records/1"}]}


def test_the_files_that_the_page_shows_are_those_that_are_run() -> None:
    shown = dict(FILE.findall((ROOT / PAGE).read_text("utf-8")))
    assert shown == {name: (ROOT / "docs" / "incident" / name).read_text("utf-8") for name in shown}
    assert "checks.toml" in shown
