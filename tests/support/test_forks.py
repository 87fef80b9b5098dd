"""A program that is forked must look like one that is started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.forks import BARE, SCRIPT, Forks, Template, can_fork, started_template

pytestmark = [
    pytest.mark.own_interpreter,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
]

SERVERS = [sys.executable, "-m", "proxy.demo.servers"]


@contextmanager
def program(words: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A running program that has written its first line."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
    with process:
        assert process.stdout
        assert process.stdout.readline()
        yield process
        process.kill()


def visible_facts(pid: int) -> dict[str, object]:
    """What the system shows of a process."""
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    stat = (place / "stat").read_text().rpartition(")")[2].split()
    return {
        **{name: status[name] for name in ("Name", "Umask", "PPid", "Uid", "Gid")},
        # But for those two that glibc uses itself.
        **{name: int(status[name], 16) & ~(3 << 31) for name in ("SigBlk", "SigIgn", "SigCgt")},
        "is leader of its group": stat[2] == str(pid),
        "is leader of its session": stat[3] == str(pid),
        "command": (place / "cmdline").read_bytes(),
        "program": (place / "exe").readlink(),
        "directory": (place / "cwd").readlink(),
        "limits": (place / "limits").read_text(),
        "streams": sorted(int(file.name) for file in (place / "fd").iterdir() if int(file.name) < 3),
    }


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (SERVERS, {}),
        (SERVERS, {"start_new_session": True, "env": os.environ | {"PYTHONSAFEPATH": "1"}}),
        (
            [sys.executable, "-P", *SERVERS[1:]],
            {"process_group": 0, "umask": 0o027, "stderr": subprocess.DEVNULL},
        ),
    ],
)
def test_it_looks_like_a_started_one(forks: Forks, tmp_path: Path, words: list[str], options: dict[str, Any]) -> None:
    with program(words, cwd=tmp_path, **options) as started:
        wanted = visible_facts(started.pid)
    with forks.in_use(), program(words, cwd=tmp_path, **options) as forked:
        found = visible_facts(forked.pid)
    assert started.returncode == forked.returncode == -signal.SIGKILL
    assert found == wanted


def test_ignored_and_blocked_signals_are_inherited(forks: Forks) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with program(SERVERS) as started:
            wanted = visible_facts(started.pid)
        with forks.in_use(), program(SERVERS) as forked:
            assert visible_facts(forked.pid) == wanted
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


@pytest.mark.parametrize(
    "words", [["config", "--json"], ["nonsense"], ["diff", "none.jsonl", "nor.jsonl"], ["--version"], ["explain"]]
)
def test_a_command_says_and_returns_the_same(forks: Forks, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "playhead.toml").write_text('mode = "auto"\n')

    def run() -> tuple[int, str, str]:
        around = os.environ | {"PLAYHEAD_ENGINE": "lane", "PLAYHEAD_DATA": str(tmp_path / "data")}
        done = subprocess.run(
            [SCRIPT, *words], cwd=tmp_path, env=around, capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout, done.stderr

    started = run()
    with forks.in_use():
        assert run() == started


def test_what_asks_for_something_unusual_is_started(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def note(self: Template, *arguments: Any) -> int:
        asked.append(arguments)
        return take(self, *arguments)

    take = Template.fork
    monkeypatch.setattr(Template, "fork", note)
    unusual: list[dict[str, Any]] = [
        {"env": os.environ | {"PYTHONHASHSEED": "1"}},
        {"env": os.environ | {"LC_ALL": "C"}},
        {"close_fds": False},
        {"preexec_fn": lambda: None},
        {"user": os.getuid()},
    ]
    with forks.in_use():
        for options in unusual:
            subprocess.run([SCRIPT, "--version"], check=True, stdout=subprocess.DEVNULL, **options)
        subprocess.run(["sh", "-c", f'"{SCRIPT}" --version'], check=True, stdout=subprocess.DEVNULL)
        assert not asked
        subprocess.run([SCRIPT, "--version"], check=True, stdout=subprocess.DEVNULL)
        assert len(asked) == 1


def test_a_template_ends_with_its_parent() -> None:
    with started_template([BARE]) as template:
        pid = template.pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_workers_are_forks_of_the_process_that_has_imported_the_tests(request: pytest.FixtureRequest) -> None:
    if getattr(request.config, "workerinput", {}).get("workercount", 1) < 2:
        pytest.skip("pytest was started without workers")
    assert can_fork()
    assert "--collect" in sys.orig_argv
    assert os.getsid(0) == os.getsid(os.getppid()), "Ctrl-C is for workers as well"
