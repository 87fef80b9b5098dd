"""Run the demo's commands as a user would type them, in the demo's own directory."""

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

START_WITHIN = 120.0
"""Seconds: a first start makes a database."""

STOP_WITHIN = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """What a command came to."""

    code: int
    out: str
    error: str
    seconds: float


def unheard(_text: str) -> None:
    """Hear nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A place to type commands in: a directory, and an environment in which `playhead` and `python` are ours."""

    directory: Path
    programs: Path = Path(sys.executable).parent
    columns: int = 100
    """How wide their output may be."""

    @property
    def environment(self) -> dict[str, str]:
        """The user's, without settings of Playhead's that would lead the demo elsewhere."""
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("PLAYHEAD_")}
        path = f"{self.programs}{os.pathsep}{theirs.get('PATH', os.defpath)}"
        return {**theirs, "COLUMNS": str(self.columns), "PATH": path, "PLAYHEAD_DATA": str(self.directory / "data")}

    async def run(self, command: Sequence[str], hear: Callable[[str], None] = unheard) -> ShellResult:
        """Type a command, hear its output as it comes, and wait for its end."""
        began = time.monotonic()
        process = await self._start(command, asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            out, error = await asyncio.gather(_heard(process.stdout, hear), _heard(process.stderr, unheard))
            await process.wait()
        finally:
            await _end(process)
        return ShellResult(code=process.returncode or 0, out=out, error=error, seconds=time.monotonic() - began)

    @asynccontextmanager
    async def running(self, command: Sequence[str], log: str) -> AsyncIterator[str]:
        """Keep a command running from the first line that it prints, which is given, to the end of the block.

        Raises Failure with the command's own words where it ends without a line.
        """
        path = self.directory / log
        with path.open("wb") as stderr:
            process = await self._start(command, stderr.fileno())
        try:
            line = await _first_line(process)
            if not line:
                words = path.read_text().strip() or f"not ready in {START_WITHIN:.0f} s"
                raise Failure(f"`{shlex.join(command)}` did not start: {words}")
            yield line
        finally:
            await _end(process)

    async def _start(self, command: Sequence[str], stderr: int) -> asyncio.subprocess.Process:
        # A session of its own: Ctrl-C reaches the demo alone, which then stops everything in order.
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.directory,
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )


async def _heard(stream: asyncio.StreamReader, hear: Callable[[str], None]) -> str:
    """All that the stream says, told piece by piece as well."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    heard = []
    while data := await stream.read(4096):
        heard.append(decoder.decode(data))
        hear(heard[-1])
    return "".join(heard)


async def _first_line(process: asyncio.subprocess.Process) -> str:
    """Empty where the process ends, or the time, before there is one."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_WITHIN):
            return (await process.stdout.readline()).decode()
    except TimeoutError:
        return ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let a process that still runs stop in order, then see to it that nothing that it started outlives it."""
    assert process.stdin is not None
    process.stdin.close()
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_WITHIN):
            await process.wait()
    except TimeoutError:
        pass  # it had its time
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
