"""Run the demo's commands as a user would, in the demo's directory."""

import asyncio
import codecs
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import Failure

START_TIMEOUT = 120.0
"""Seconds that a command may take to start. The first start creates a database."""

STOP_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """The result of a command."""

    code: int
    out: str
    error: str
    seconds: float


def ignore_output(_text: str) -> None:
    """Ignore output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Runs commands in a directory, with this installation's `playhead` and `python` first on the PATH."""

    directory: Path
    programs: Path = Path(sys.executable).parent
    columns: int = 100
    """The width of the commands' output."""

    @property
    def environment(self) -> dict[str, str]:
        """The user's environment without Playhead's settings, which could change the demo."""
        user_environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAYHEAD_")}
        path = f"{self.programs}{os.pathsep}{user_environment.get('PATH', os.defpath)}"
        return {
            **user_environment,
            "COLUMNS": str(self.columns),
            "PATH": path,
            "PLAYHEAD_DATA": str(self.directory / "data"),
            # Nothing outlives the demo, whose directory may be removed.
            "PLAYHEAD_STORE_IDLE": "0",
        }

    async def run(self, command: Sequence[str], on_output: Callable[[str], None] = ignore_output) -> ShellResult:
        """Run a command to its end, and pass on its output as it arrives."""
        began = time.monotonic()
        process = await self._start(command, asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            out, error = await asyncio.gather(
                _read_stream(process.stdout, on_output), _read_stream(process.stderr, ignore_output)
            )
            await process.wait()
        finally:
            await _end_process(process)
        return ShellResult(code=process.returncode or 0, out=out, error=error, seconds=time.monotonic() - began)

    @asynccontextmanager
    async def background_command(self, command: Sequence[str], log: str) -> AsyncIterator[str]:
        """Run a command while the block runs, and yield the first line that it prints.

        Raises Failure with the command's own message if it ends without a line.
        """
        path = self.directory / log
        with path.open("wb") as stderr:
            process = await self._start(command, stderr.fileno())
        try:
            line = await _first_line(process)
            if not line:
                words = path.read_text().strip() or f"not ready in {START_TIMEOUT:.0f} s"
                raise Failure(f"`{shlex.join(command)}` did not start: {words}")
            yield line
        finally:
            await _end_process(process)

    async def _start(self, command: Sequence[str], stderr: int) -> asyncio.subprocess.Process:
        # It runs in its own session, so that Ctrl-C reaches the demo alone, which stops everything in order.
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.directory,
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )


async def _read_stream(stream: asyncio.StreamReader, on_output: Callable[[str], None]) -> str:
    """Read a stream to its end, and pass on each piece as it arrives."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = []
    while data := await stream.read(4096):
        pieces.append(decoder.decode(data))
        on_output(pieces[-1])
    return "".join(pieces)


async def _first_line(process: asyncio.subprocess.Process) -> str:
    """Return the first line of output; empty if the process ends or the time runs out before."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT):
            return (await process.stdout.readline()).decode()
    except TimeoutError:
        return ""


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Stop a process in order, then kill its process group."""
    assert process.stdin is not None
    process.stdin.close()
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT):
            await process.wait()
    except TimeoutError:
        pass  # it is killed below
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
