"""When the terminal is closed, commands end in order, unless `nohup` started them."""

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.service import command, keeping, surroundings

pytestmark = pytest.mark.slow


class Terminal:
    """A terminal in which one command runs in the foreground."""

    def __init__(self, line: list[str], hangup: signal.Handlers = signal.SIG_DFL) -> None:
        self._own, its = pty.openpty()

        def take_terminal() -> None:
            signal.signal(signal.SIGHUP, hangup)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            line,
            stdin=its,
            stdout=its,
            stderr=its,
            env=surroundings(),
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(its)

    def read_until(self, word: bytes) -> None:
        shown = b""
        while word not in shown:
            shown += os.read(self._own, 4096)

    def close(self) -> None:
        os.close(self._own)


async def test_up_ends_as_on_sigterm(data: Path, database_url: str) -> None:
    line = command("up", "--data", str(data), "--proxy-port", "0", "--api-port", "0", "--database-url", database_url)
    terminal = Terminal(line)
    await asyncio.to_thread(terminal.read_until, b"ready proxy=")
    terminal.close()
    assert await asyncio.to_thread(terminal.process.wait, 60) == 0
    assert not (data / "up.json").exists()


@pytest.mark.parametrize("what", ["record", "replay"])
async def test_a_command_ends_and_its_record_is_finished(data: Path, database_url: str, what: str) -> None:
    async with keeping(data, database_url):
        if what == "replay":
            done = await asyncio.create_subprocess_exec(
                *command("record", "--data", str(data), "--run", "good", "--", "true"), env=surroundings()
            )
            assert await done.wait() == 0
        words = ["--run", "night"] if what == "record" else ["good"]
        terminal = Terminal(command(what, "--data", str(data), *words, "--", "sh", "-c", "echo BEGAN; exec sleep 60"))
        await asyncio.to_thread(terminal.read_until, b"BEGAN")
        terminal.close()
        assert await asyncio.to_thread(terminal.process.wait, 60) == 128 + signal.SIGHUP, "as a shell says it"
        assert not list((data / "replays").glob("*.jsonl"))
        listing = await asyncio.create_subprocess_exec(
            *command("ls", "--data", str(data), "--json"), env=surroundings(), stdout=subprocess.PIPE
        )
        shown, _ = await listing.communicate()
        assert b'"ended_at": null' not in shown


@pytest.mark.parametrize("what", ["record", "up"])
async def test_what_nohup_started_ignores_it(data: Path, database_url: str, what: str) -> None:
    words = {
        "record": ["--run", "night", "--", "sh", "-c", "echo BEGAN; exec sleep 60"],
        "up": ["--proxy-port", "0", "--api-port", "0", "--database-url", database_url],
    }
    async with keeping(data, database_url) if what == "record" else nullcontext():
        terminal = Terminal(command(what, "--data", str(data), *words[what]), hangup=signal.Handlers.SIG_IGN)
        await asyncio.to_thread(terminal.read_until, b"BEGAN" if what == "record" else b"ready proxy=")
        status = Path(f"/proc/{terminal.process.pid}/status").read_text()  # noqa: ASYNC240 - no disk
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        assert ignored & 1 << (signal.SIGHUP - 1)
        terminal.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(terminal.process.wait, 60) in (0, 128 + signal.SIGTERM)
        terminal.close()


EXPORT = """
import sys, time
from pathlib import Path
from proxy.cli import files
from proxy.commands.export import open_output
from store.datadir import open_data_dir

def write_half(flags, question, **more):
    with open_output(Path(sys.argv[1])) as file:
        file.write(b"half")
        print("BEGAN", flush=True)
        time.sleep(60)

files.query_store = write_half
data = Path(sys.argv[1]).parent.parent / "data"
open_data_dir(data)
files.export_command.main(["run-1", "-o", sys.argv[1], "--data", str(data)], standalone_mode=False)
"""

BACKUP = """
import asyncio, sys
from pathlib import Path
from proxy.cli.keep import backup

async def write_half(target, *args, **more):
    target.write_bytes(b"half")
    try:
        print("BEGAN", flush=True)
        await asyncio.sleep(60)
    finally:
        target.unlink()

backup.write_backup = write_half
data = Path(sys.argv[1]).parent.parent / "data"
backup.open_data_dir(data)
words = [sys.argv[1], "--data", str(data), "--database-url", "postgresql://nobody@localhost/none"]
backup.backup_command.main(words, standalone_mode=False)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", [EXPORT, BACKUP], ids=["export", "backup"])
def test_an_unfinished_file_is_removed(tmp_path: Path, program: str, number: signal.Signals) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    line = [sys.executable, "-c", program, str(directory / "out")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=surroundings()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"BEGAN\n"
        assert list(directory.iterdir())
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert not list(directory.iterdir())


TRIALS = """
import asyncio, sys, click
from proxy.cli.testing.trial_options import run_until_stopped
async def wait():
    print("BEGAN", flush=True)
    await asyncio.sleep(60)
try:
    run_until_stopped(wait())
except click.exceptions.Exit as exit:
    sys.exit(exit.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_trials_that_are_stopped_say_by_which_signal(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", TRIALS], stdout=subprocess.PIPE, env=surroundings()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"BEGAN\n"
        process.send_signal(number)
        assert process.wait(60) == 128 + number
