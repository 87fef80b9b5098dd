"""A shell completes commands, options, and the names of runs, and nothing is started for it."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest

from proxy.cli.run_completion import complete_run
from store.datadir import open_data_dir
from tests.support.shells import starting_variables

SHELLS: Mapping[str, Sequence[str]] = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
PREPARE = {
    "bash": 'bind "set bell-style none"; source <(playhead completion bash)',
    "zsh": "autoload -Uz compinit; compinit -u; source <(playhead completion zsh)",
    "fish": "playhead completion fish | source",
}


@pytest.fixture
def data_with_claims(tmp_path: Path) -> Path:
    """A data directory in which `record` has begun runs, and no store server runs."""
    data = tmp_path / "data"
    directory = open_data_dir(data)
    for age, name in enumerate(("night-shift", "ticket:904:g2", "$(touch pwned)", "-rf")):
        file = directory.claims / f"{name}.claim"
        file.touch()
        os.utime(file, (1_000_000 - age, 1_000_000 - age))
    return data


@pytest.fixture
def environment(tmp_path: Path, data_with_claims: Path, forking_playhead: Path) -> dict[str, str]:
    """An environment in which `playhead` is on the PATH, and the home is empty."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "playhead").symlink_to(forking_playhead)
    path = os.pathsep.join((str(place), os.environ["PATH"]))
    own = {"HOME": str(tmp_path), "PLAYHEAD_DATA": str(data_with_claims), "TERM": "xterm"}
    return {"PATH": path, **own, **starting_variables(os.environ)}


class Terminal:
    """A shell in a terminal: what a person types, and what is on the screen then."""

    def __init__(self, shell: str, environment: Mapping[str, str], directory: Path) -> None:
        self._master, slave = pty.openpty()
        # fish wants the terminal to be its controlling one.
        line = ["setsid", "--ctty", *SHELLS[shell]]
        self._process = subprocess.Popen(line, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=directory)
        os.close(slave)

    def type(self, text: str, until: str, patience: float = 30) -> str:
        """What the shell writes after these keys, up to some text."""
        os.write(self._master, text.encode())
        seen, end = "", time.monotonic() + patience
        while until not in seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{until!r} did not come: {seen!r}"
            chunk = os.read(self._master, 65536)
            if b"\x1b[c" in chunk:
                # fish asks the terminal what it is before it begins.
                os.write(self._master, b"\x1b[?62c")
            seen += chunk.decode("utf-8", "replace")
        return seen

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_the_names_of_runs(
    shell: str, environment: Mapping[str, str], data_with_claims: Path, tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    terminal = Terminal(shell, environment, tmp_path)
    try:
        terminal.type(f"{PREPARE[shell]}; echo rea''dy\r", "ready\r\n")
        assert "show" in terminal.type("playhead sho\tnight\t", "-shift")
        # The line that the shell has made is a command: what comes behind it is its help.
        terminal.type(" --help >out; echo do''ne\r", "done\r\n")
        assert "Show a run" in (tmp_path / "out").read_text()
    finally:
        terminal.close()
    assert not (data_with_claims / "pg").exists()
    assert not (tmp_path / "pwned").exists()


def completions(line: str, environment: Mapping[str, str], *words: str) -> list[str]:
    """What Bash is offered for a line, by the function that the script defines."""
    script = f"""
        source <(playhead completion bash)
        compopt() {{ echo "compopt $*"; }}
        COMP_LINE={line!r} COMP_POINT={len(line)}
        {" ".join(words)}
        _playhead_completion playhead
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split("\n")[:-1]


def test_bash_is_offered_commands_options_runs_and_files(environment: Mapping[str, str]) -> None:
    assert completions("playhead re", environment) == [
        "record",
        "replay",
        "resume",
        "regress",
        "rekey",
        "retention",
        "restore",
    ]
    assert completions("playhead replay --after-", environment) == ["--after-last"]
    assert completions("playhead replay --after-last=c", environment) == ["cycle"]
    assert completions("playhead show ", environment) == ["last", "night-shift", "ticket:904:g2"]
    assert completions("playhead replay ni", environment) == ["compopt -o default", "night-shift"]
    assert completions("playhead replay last -- agent.", environment)[0] == "compopt -o default"
    assert completions("playhead show 'ni", environment) == ["night-shift"]


def test_bash_is_offered_what_follows_the_last_colon(environment: Mapping[str, str]) -> None:
    assert completions("playhead show ticket:9", environment) == ["904:g2"]
    assert completions("playhead token --run=ticket:904:", environment) == ["g2"]
    assert completions("playhead show ticket:9", environment, 'COMP_WORDBREAKS=" "') == ["ticket:904:g2"]


@pytest.mark.parametrize("text", ["= nonsense [", 'data = "/proc/nowhere"\n', "[[profile]]\nname = 3\n"])
def test_what_is_wrong_with_a_configuration_completes_to_nothing_and_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "playhead.toml").write_text(text)
    data = {} if text.startswith("data") else {"PLAYHEAD_DATA": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-c", "from proxy.cli import main; main()"],
        # Not the data directory of whoever runs the tests, which has runs.
        env={**os.environ, **data, "_PLAYHEAD_COMPLETE": "bash_complete", "COMP_WORDS": "playhead show "},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,last\n", "")


class Listing(BaseHTTPRequestHandler):
    """A store server that lists runs, one of them named by an agent that means harm."""

    def do_GET(self) -> None:
        names = ["today", "a;reboot", "night-shift"]
        items = [{"id": name, "started_at": "2026-11-23T14:40:23.092562Z", "calls": 4} for name in names]
        body = json.dumps({"items": items, "next": None}).encode()
        self.send_response(200 if self.headers["authorization"] else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_running_store_server_is_asked(
    data_with_claims: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("proxy.cli.run_completion.TIMEOUT", 60.0)
    directory = open_data_dir(data_with_claims)
    directory.api_token()
    with ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server, directory.store_lock.hold():
        Thread(target=server.serve_forever, daemon=True).start()
        directory.announce("store", {"api": f"http://127.0.0.1:{server.server_port}"})
        command = click.Command("show", params=[click.Option(["--data"])])
        with command.make_context("show", ["--data", str(data_with_claims)]) as context:
            found = complete_run(context, command.params[0], "")
        server.shutdown()
    assert [(one.value, one.help) for one in found] == [
        ("last", "the newest run"),
        ("today", "2026-11-23 14:40, 4 calls"),
        ("night-shift", ""),
        ("ticket:904:g2", ""),
    ]
