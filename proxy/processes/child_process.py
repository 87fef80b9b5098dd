"""Start one of our processes: its configuration is one JSON line on stdin, and its readiness one on stdout.

Its stdin stays open for as long as it shall live, so that a killed parent leaves nothing running.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from proxy.errors import Failure

GRACE = 4.5
"""Seconds that a process may take to stop before it is killed: workers, then the store server, within the contract's 10 s."""

STOP = b"stop\n"
"""What a process reads last where it is stopped on purpose. Without it, whoever started it was killed."""


class Child:
    """One running process of ours."""

    def __init__(self, log: Path, process: asyncio.subprocess.Process, ready: Mapping[str, Any]) -> None:
        self.name = log.stem
        self.log = log
        self.ready = ready
        self._process = process

    @classmethod
    async def start(cls, module: str, config: msgspec.Struct | Awaitable[msgspec.Struct], *, log: Path) -> Self:
        """Start `python -m MODULE` and wait until it is ready. Raises Failure with its own words where it says some.

        A configuration that is still being made is awaited while the process comes up, and ends it where it fails.
        """
        # A session of its own: Ctrl-C in the terminal reaches us alone, and we stop things in order.
        with log.open("ab") as stderr:
            begin = stderr.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env=os.environ | {"PYTHONSAFEPATH": "1"},
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            told = config if isinstance(config, msgspec.Struct) else await config
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except ConnectionError:
            line = b""
        except BaseException:
            process.kill()
            await process.communicate()
            raise
        said = _parsed(line)
        if "ready" not in said:
            await process.wait()
            raise Failure(
                said.get("failed") or f"{module} ended before it was ready{_last_words(log, begin)} (more in {log})"
            )
        return cls(log, process, said)

    async def messages(self) -> AsyncIterator[Mapping[str, Any]]:
        """What it says on stdout after its first line."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            yield _parsed(line)

    async def ended(self) -> int:
        """Wait until it ends, for whatever reason; its exit status."""
        return await self._process.wait()

    async def stop(self) -> int:
        """Ask it to stop by a word on its stdin and its end, wait, and kill it only when it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(STOP)
            self._process.stdin.close()
        except ConnectionError:
            pass  # it has ended by itself
        try:
            async with asyncio.timeout(GRACE):
                return await self._process.wait()
        except TimeoutError:
            return await self.killed()

    def leave(self) -> None:
        """Let it go on without us. It sees that its stdin has ended without the word to stop."""
        # asyncio kills the process of a transport that is closed or collected, unless it is closed already.
        transport: Any = vars(self._process)["_transport"]
        transport._closed = True
        for number in (0, 1):
            transport.get_pipe_transport(number).close()

    def forget(self) -> None:
        """Leave no log of one that has ended, where it had nothing to say."""
        if self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()

    async def killed(self) -> int:
        """Kill it where it still runs; its exit status."""
        if self._process.returncode is None:
            self._process.kill()
        return await self._process.wait()


def _last_words(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        words = file.read().decode("utf-8", "replace").split("\n")
    if os.statvfs(log).f_bavail == 0:
        # It could not even write what went wrong.
        return f": there is no room left at {log.parent}; make some"
    # The frame that tracebacks of groups are drawn in says nothing.
    last = next((line.strip(" |") for line in reversed(words) if any(map(str.isalpha, line))), "")
    return f": {last[:300]}" if last else ""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
