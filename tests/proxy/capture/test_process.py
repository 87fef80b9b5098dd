"""Which processes belong to one agent, and how their command lines are redacted."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy.capture.process import Process, find_agent, program_name, read_process, redacted_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc, which is Linux's")

PORT = 18080
WITH_PROXY = {"HTTPS_PROXY": f"http://per-process:x@127.0.0.1:{PORT}"}
SAY_PID = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
AGENT = f"import subprocess, sys; subprocess.run({{}}, check=True)  # {SAY_PID!r}"


@contextmanager
def innermost(*line: str, **env: str) -> Iterator[tuple[Process, int]]:
    """Return the process that prints its pid, and the pid of the one that was started."""
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**clean, **env}) as started:
        assert started.stdout is not None
        found = read_process(int(started.stdout.readline()))
        assert found is not None
        yield found, started.pid
        started.communicate(b"")


def agent(*line: str) -> list[str]:
    """Return a Python program that runs a command."""
    return [sys.executable, "-c", f"import subprocess; subprocess.run({list(line)!r}, check=True)"]


LEAF = [sys.executable, "-c", SAY_PID]
IN_SHELL = ["sh", "-c", f'"{sys.executable}" -c "{SAY_PID}"; true']


@pytest.mark.parametrize("tool", [LEAF, IN_SHELL, ["setsid", "-w", *LEAF]], ids=["child", "in a shell", "own session"])
def test_what_an_agent_starts_belongs_to_it(tool: list[str]) -> None:
    with innermost(*agent(*tool), **WITH_PROXY) as (leaf, started):
        assert leaf.pid != started
        assert find_agent(leaf, PORT).pid == started


def test_agents_that_a_script_starts_one_after_another_are_their_own_where_the_script_made_the_variables() -> None:
    script = f'export HTTPS_PROXY={WITH_PROXY["HTTPS_PROXY"]}; "$@"; true'
    with innermost("sh", "-c", script, "sh", *agent(*LEAF)) as (leaf, started):
        found = find_agent(leaf, PORT)
        assert found.pid not in (leaf.pid, started)
        assert found.parent == started


def test_a_script_that_was_started_with_the_variables_is_one_agent() -> None:
    with innermost(*IN_SHELL, **WITH_PROXY) as (leaf, started):
        assert find_agent(leaf, PORT).pid == started


def test_variables_that_name_another_proxy_are_not_ours() -> None:
    with innermost("sh", "-c", '"$@"; true', "sh", *LEAF, **WITH_PROXY) as (leaf, started):
        assert find_agent(leaf, PORT + 1).pid == leaf.pid != started


def test_without_variables_the_outermost_below_a_shell_is_the_agent() -> None:
    with innermost("sh", "-c", '"$@"; true', "sh", *agent(*LEAF)) as (leaf, started):
        assert find_agent(leaf, PORT).parent == started


def test_a_process_that_is_gone_is_none() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert read_process(gone.pid) is None


def process(*arguments: str) -> Process:
    return Process(pid=7, start_time=255, parent=1, group=7, session=7, arguments=arguments, user=0)


@pytest.mark.parametrize(
    ("line", "run"),
    [
        (("python3.12", "-u", "src/agent.py", "--x"), "agent.py-7-ff"),
        (("/usr/bin/python", "-m", "my.agent"), "my.agent-7-ff"),
        (("/usr/bin/python", "-c", "secret()"), "python-7-ff"),
        (("node", "dist/index.js"), "index.js-7-ff"),
        (("./agent (copy)",), "agent-copy-7-ff"),
        (("/opt/claude",), "claude-7-ff"),
        ((), "process-7-ff"),
    ],
)
def test_a_run_is_named_after_the_program(line: tuple[str, ...], run: str) -> None:
    assert process(*line).run == run


@pytest.mark.parametrize("line", [("-bash",), ("/bin/zsh", "-i"), ("bash", "--norc"), ("bash", "-s")])
def test_a_shell_that_somebody_types_into_is_no_agent(line: tuple[str, ...]) -> None:
    assert process(*line).is_interactive_shell


@pytest.mark.parametrize("line", [("bash", "run.sh"), ("sh", "-c", "curl x"), ("python",)])
def test_a_shell_that_runs_a_script_is_not_typed_into(line: tuple[str, ...]) -> None:
    assert not process(*line).is_interactive_shell


def test_secret_options_are_not_shown() -> None:
    line = ("agent", "--api-key", "k1", "--token=k2", "-v", "--password", "k3", "API_KEY=k4", "--ticket", "904")
    assert redacted_command(line) == "agent --api-key *** --token=*** -v --password *** API_KEY=*** --ticket 904"
    assert len(redacted_command(("x" * 1000,))) == 301
    assert redacted_command(("a\nb\x1b[0m",)) == "a b [0m"


def test_an_interpreter_s_options_are_not_its_program() -> None:
    assert program_name(("python3", "-X", "dev")) == "dev"  # an option's value looks like a script
    assert program_name(("ruby",)) == "ruby"
