"""regress as a person uses it: real processes, bundles, and a real git repository."""

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from proxy.cli import playhead
from tests.proxy.test_compare import run_playhead, save_agent
from tests.proxy.trials.agent_script import write_agent
from tests.store.agents import Agent
from tests.support.service import surroundings

SPEC = """
[[rule]]
name = "looks for details"
kind = "argument"
tool = "search"
at = "$.q"
is = { pattern = ".*details" }

[[rule]]
kind = "forbid"
tools = ["drop_*"]
"""


@pytest.fixture
def home(data: Path) -> Path:
    (data.parent / "recordings").mkdir()
    write_agent(data.parent)
    return data.parent


def save(home: Path, name: str, **changes: object) -> None:
    file = save_agent(home, name, Agent(turns=1, **changes))  # type: ignore[arg-type] # its own members
    file.rename(home / "recordings" / file.name)


@pytest.mark.slow
async def test_recordings_are_replayed_at_once_and_what_diverges_alike_is_grouped(home: Path, python: str) -> None:
    save(home, "a-same")
    save(home, "b-other", system="Be kind.")
    save(home, "c-other", system="Be quick.")
    (home / "checks.toml").write_text(SPEC)
    line = ["regress", "recordings", "--jobs", "2", "--json", "--junit", "out.xml", "--spec", "checks.toml"]
    done = await run_playhead(home, *line, "--", python, "agent.py")
    assert done.code == 1, done.err
    found = json.loads(done.out)
    names = [f"recordings/{name}.jsonl" for name in ("a-same", "b-other", "c-other")]
    assert [(one["run"], one["status"]) for one in found["runs"]] == [
        (names[0], "same"),
        (names[1], "diverged"),
        (names[2], "diverged"),
    ]
    assert found["runs"][0]["check"]["verdict"] == "pass"
    assert "found {'found'" in found["runs"][0]["output"]
    (cluster,) = found["clusters"]
    assert (cluster["pointer"], cluster["runs"], cluster["steps"]) == ("/body/messages/*/content", names[1:], [1])
    assert "of 3: recordings/b-other.jsonl: diverged" in done.err
    suite = ElementTree.fromstring((home / "out.xml").read_bytes())[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "2", "0")


@pytest.mark.slow
async def test_a_broken_rule_is_found_in_a_replay_that_is_the_same(home: Path, python: str) -> None:
    save(home, "odd", asks=lambda _turn: "everything")
    (home / "checks.toml").write_text(SPEC)
    line = ["regress", "recordings/odd.jsonl", "--spec", "checks.toml"]
    done = await run_playhead(home, *line, "--", python, "agent.py")
    assert done.code == 1, done.err
    assert "broken" in done.out
    assert 'looks for details: step 1: search/q is "everything"' in done.out


@pytest.mark.slow
async def test_a_command_that_takes_too_long_is_stopped_with_what_it_started(home: Path) -> None:
    save(home, "a")
    script = "sleep 60 & echo begun; wait"
    done = await run_playhead(home, "regress", "recordings", "--timeout", "2", "--", "sh", "-c", script)
    assert done.code == 125, done.err
    assert "it was stopped after 2 s (--timeout)" in done.out


async def git(home: Path, *words: str) -> str:
    """Run git in a repository that knows no configuration of the user."""
    identity = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    identity |= {
        f"GIT_{role}_{what}": "a@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    process = await asyncio.create_subprocess_exec(
        *("git", *words),
        cwd=home,
        env=surroundings() | identity,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 110)
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest.mark.slow
async def test_git_bisect_finds_the_commit_that_changed_what_the_agent_asks(
    home: Path, forking_playhead: Path, python: str
) -> None:
    save(home, "release")
    await git(home, "init", "-q")
    for number, system in enumerate(("Be brief.", "Be brief.", "Be nice.", "Be nice."), 1):
        write_agent(home, system, f"# commit {number}\n")
        await git(home, "add", "agent.py")
        await git(home, "commit", "-q", "-m", f"commit {number}")
    await git(home, "bisect", "start", "HEAD", "HEAD~3")
    regress = [str(forking_playhead), "regress", "--data", str(home / "d"), "recordings", "--", python, "agent.py"]
    said = await git(home, "bisect", "run", *regress)
    assert "is the first bad commit" in said
    assert "commit 3" in said.partition("is the first bad commit")[2]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--", "true"], 125, "there are no recordings to replay: name runs, bundles or a directory of bundles"),
        (["empty", "--", "true"], 125, "the directory empty has no bundles"),
        (["absent.jsonl", "--", "true"], 125, "there is no bundle absent.jsonl"),
        (["last"], 2, "there is no command to run: write it behind --"),
        (["last", "--", "no-such-command"], 125, "cannot run no-such-command: there is no such command"),
        (["last", "--spec", "wrong.toml", "--", "true"], 125, "wrong.toml: line 2: unknown kind of rule 'forbidden'"),
        (["last", "--timeout", "0", "--", "true"], 2, "--timeout"),
    ],
)
def test_bad_input_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong.toml").write_text('\n[[rule]]\nkind = "forbidden"\n')
    done = CliRunner().invoke(playhead, ["regress", "--data", str(tmp_path / "d"), *words])
    message = str(done.exception) if code == 125 else done.output
    assert said in message
    assert code == 125 or done.exit_code == code
