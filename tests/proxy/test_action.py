"""The GitHub action, as a runner runs it: its steps in bash, the files of the runner as files, no secrets."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.proxy.test_files import AGENT, SAID, cassette
from tests.support.shells import starting_variables

ACTION = Path(__file__).resolve().parents[2] / "deploy" / "action"

HARMLESS = ("PATH", "HOME", "TMPDIR")


@dataclass(slots=True, kw_only=True)
class Runner:
    """What of GitHub's runner matters here: a job's environment and its files."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    log: str = ""

    def uses(self, action: Path, **inputs: str) -> int:
        """Run the steps of a composite action; the first that fails ends it."""
        output = yaml.safe_load((action / "action.yml").read_text())
        values = {name: str(one.get("default", "")) for name, one in output.get("inputs", {}).items()}
        values |= {name.replace("_", "-"): value for name, value in inputs.items()}
        for step in output["runs"]["steps"]:
            given = {name: _fill_inputs(text, values) for name, text in step.get("env", {}).items()}
            code = self.runs(step["run"], {**given, "GITHUB_ACTION_PATH": str(action)})
            if code:
                return code
        return 0

    def runs(self, script: str, more: Mapping[str, str] | None = None) -> int:
        """Run a step of the job; what it writes into GITHUB_ENV is there for the next."""
        files = {name: self.root / name for name in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        files["GITHUB_ENV"].write_text("")
        with (self.root / "log").open("w") as log:
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
                cwd=self.root,
                env={
                    **self.environment,
                    **(more or {}),
                    **{name: str(file) for name, file in files.items()},
                    "RUNNER_TEMP": str(self.root / "temp"),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=100,
                check=False,
            )
        self.log = (self.root / "log").read_text()
        self.environment |= dict(_assignments(files["GITHUB_ENV"].read_text()))
        return done.returncode

    def read(self, name: str) -> str:
        """One of the runner's files."""
        file = self.root / name
        return file.read_text() if file.exists() else ""


def _fill_inputs(text: str, inputs: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """As the runner reads GITHUB_ENV; it refuses NODE_OPTIONS, and so do we."""
    for name, _, value in re.findall(r"^(\w+)<<(\w+)\n(.*?)\n\2$", text, re.MULTILINE | re.DOTALL):
        assert name != "NODE_OPTIONS"
        yield name, value


@pytest.fixture
def runner(tmp_path: Path, programs: Path) -> Runner:
    """A checkout of ours whose `playhead` is the one under test, and a job that knows no key."""
    shutil.copytree(ACTION, tmp_path / "ours" / "deploy" / "action")
    ours = tmp_path / "ours" / "playhead"
    ours.write_text(f'#!/bin/sh\nexec "{programs / "playhead"}" "$@"\n')
    ours.chmod(0o755)
    (tmp_path / "temp").mkdir()
    (tmp_path / "agent.py").write_text(AGENT.replace('api_key="none", ', ""))
    cassette(tmp_path / "talk.yaml")
    # Forks stand only for interpreters that are started with the same variables.
    kept = {name: os.environ[name] for name in HARMLESS if name in os.environ} | starting_variables(os.environ)
    return Runner(
        root=tmp_path, environment=kept | {"PATH": f"{programs}:{Path(sys.executable).parent}:{kept['PATH']}"}
    )


def action(runner: Runner) -> Path:
    return runner.root / "ours" / "deploy" / "action"


@pytest.mark.slow
def test_one_step_replays_a_command(runner: Runner) -> None:
    assert runner.uses(action(runner), recording="talk.yaml", run="python agent.py") == 0, runner.log
    assert runner.log.splitlines()[:3] == SAID
    assert "the replay was right" in runner.read("GITHUB_STEP_SUMMARY")
    assert "| 3 | 0 | 0 | 0 |" in runner.read("GITHUB_STEP_SUMMARY")
    assert "verdict=right" in runner.read("GITHUB_OUTPUT")
    assert not runner.read("GITHUB_ENV")


@pytest.mark.slow
def test_a_miss_fails_the_step_and_is_explained_on_the_job_s_page(runner: Runner) -> None:
    agent = runner.root / "agent.py"
    agent.write_text(agent.read_text().replace("1 + 2", "2 + 2") + "\n")
    assert runner.uses(action(runner), recording="talk.yaml", run="python agent.py || true") == 1
    page = runner.read("GITHUB_STEP_SUMMARY")
    assert "the replay was diverged" in page
    assert "/messages/0/content" in page
    assert '- "What is 1 + 2?"' in page
    assert '+ "What is 2 + 2?"' in page
    assert "To fix it:" in page
    assert "step 2: POST https://api.openai.com/v1/chat/completions" in page
    assert "::error title=Not recorded::" in runner.log


@pytest.mark.slow
def test_the_steps_that_follow_are_answered_until_the_last(runner: Runner) -> None:
    before = dict(runner.environment)
    assert runner.uses(action(runner), recording="talk.yaml") == 0, runner.log
    assert runner.environment["HTTPS_PROXY"].startswith("http://replay-")
    assert Path(runner.environment["REQUESTS_CA_BUNDLE"]).exists()
    assert runner.runs("python agent.py") == 0, runner.log
    assert runner.log.splitlines() == SAID
    assert runner.uses(action(runner) / "finish") == 0, runner.log
    assert "3 served, 0 missed" in runner.log
    assert "the replay was right" in runner.read("GITHUB_STEP_SUMMARY")
    after = {name: value for name, value in runner.environment.items() if value}
    assert after == before


@pytest.mark.slow
def test_what_was_not_asked_for_fails_the_last_step(runner: Runner) -> None:
    assert runner.uses(action(runner), recording="talk.yaml") == 0
    (runner.root / "asks.py").write_text('import httpx; httpx.get("https://tools.example.com/v1/time?zone=utc")')
    assert runner.runs("python asks.py") == 0
    assert runner.uses(action(runner) / "finish") == 1
    assert "Recorded, and not asked for" in runner.read("GITHUB_STEP_SUMMARY")


def test_a_recording_that_is_not_there_fails_the_first_step_and_says_so(runner: Runner) -> None:
    assert runner.uses(action(runner), recording="nowhere.jsonl") == 125
    assert "there is no bundle nowhere.jsonl" in runner.log
    assert runner.uses(action(runner) / "finish") == 125


def test_what_a_caller_gives_is_no_script_of_the_action(runner: Runner) -> None:
    text = yaml.safe_load((ACTION / "action.yml").read_text())
    assert all("${{" not in step["run"] for step in text["runs"]["steps"])
    assert runner.uses(action(runner), recording='"; touch pwned; "') == 125
    assert not (runner.root / "pwned").exists()


def test_the_page_shows_what_was_asked_and_never_interprets_it(tmp_path: Path) -> None:
    report: dict[str, Any] = {
        "verdict": "diverged",
        "missed": 1,
        "misses": [
            {
                "number": 1,
                "reason": "no_match",
                "asked": "GET https://a.example/```<script>",
                "detail": "50%\n::stop-commands::x",
                "nearest": {"step": 1, "differences": [{"pointer": "/a", "recorded": "````", "now": None}]},
                "fix": "this; or that",
            }
        ],
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    done = subprocess.run(
        [sys.executable, ACTION / "summary.py", tmp_path / "report.json", "a`b", "1"],
        env={"GITHUB_STEP_SUMMARY": str(tmp_path / "page"), "GITHUB_OUTPUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "::error title=Not recorded::50%25%0A::stop-commands::x\n"
    page = (tmp_path / "page").read_text()
    assert "````\nGET https://a.example/```<script>\n````\n" in page
    assert '`````diff\n/a\n- "````"\n+ null\n`````' in page
