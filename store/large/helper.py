"""Start a helper process when there is a job, give it one job at a time, and end it when it was idle."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from store.large.jobs import HelperJob, Reply, WorkerConfig

TIME_LIMIT: Final = 60.0
"""Seconds that a job may take without a sign that it comes further; more where it is about much, by `PER_BYTE`."""

PER_BYTE: Final = 1e-6
"""Seconds more for each byte of a job's files, or of the largest body that an answer may have."""

MEMORY_PER_BYTE: Final = 12
"""How much memory a helper process may have for each byte of the largest body."""

REST: Final = 15.0
"""Seconds after which a helper process without a job is ended, and its memory is free."""

_LINE: Final = 1 << 20


class Helper:
    """One helper process at most. `run` waits for its turn, does a job, and never raises for what the job does."""

    def __init__(self, config: WorkerConfig, *, time_limit: float = TIME_LIMIT, rest: float = REST) -> None:
        self._config = config
        self._time_limit = time_limit
        self._rest = rest
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._ending: asyncio.TimerHandle | None = None
        self.peak = 0
        """The most memory, in bytes, that any of its processes has had resident."""

    async def run(self, job: HelperJob, further: Callable[[Reply], None] = lambda _: None) -> Reply:
        """Do a job. A process that breaks its limits is ended, and the answer says so.

        `further` is called when the job has come further.
        """
        async with self._turn:
            if self._ending is not None:
                self._ending.cancel()
            patience = self._time_limit + PER_BYTE * await asyncio.to_thread(self._size, job)
            try:
                process = await self._running()
                async with asyncio.timeout(patience) as silence:
                    reply = await self._asked(process, job, _Steps(silence, patience, further))
            except TimeoutError:
                await self.close()
                return Reply(failed=f"it took longer than {patience:.4g} s")
            except BaseException:
                await self.close()
                raise
            self.peak = max(self.peak, reply.peak)
            if reply.failed and not reply.is_unavailable:
                # What a failed job leaves in memory is nobody's any more.
                await self.close()
            else:
                self._ending = asyncio.get_running_loop().call_later(self._rest, self._kill)
            return reply

    async def close(self) -> None:
        """End the process."""
        if self._ending is not None:
            self._ending.cancel()
        process = self._process
        self._kill()
        if process is not None:
            await process.communicate()  # closes its pipes

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is not None:
            await self.close()
        if self._process is None:
            self._process = await self._started()
        return self._process

    def _size(self, job: HelperJob) -> int:
        """How much a job is about, in bytes."""
        if job.store is not None:
            return _file_size(job.store.file)
        return _file_size(job.render.body if job.render else None) + self._config.memory_limit // MEMORY_PER_BYTE

    async def _asked(
        self, process: asyncio.subprocess.Process, job: HelperJob, further: Callable[[Reply], None]
    ) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            await process.stdin.drain()
            while (line := await process.stdout.readline()).endswith(b"\n"):
                reply = msgspec.json.decode(line, type=Reply)
                if reply.is_over:
                    return reply
                further(reply)
        except ConnectionError:
            pass
        self._process = None
        await process.communicate()
        return Reply(failed=_ended(process.returncode or 0))

    async def _started(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "store.large.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE,
            env=os.environ | {"PYTHONSAFEPATH": "1", "MALLOC_ARENA_MAX": "2"},
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._config) + b"\n")
        return process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()


class _Steps:
    """Gives a job its time anew with each sign that it has come further."""

    def __init__(self, silence: asyncio.Timeout, patience: float, further: Callable[[Reply], None]) -> None:
        self._silence = silence
        self._patience = patience
        self._further = further

    def __call__(self, reply: Reply) -> None:
        self._silence.reschedule(asyncio.get_running_loop().time() + self._patience)
        self._further(reply)


def _file_size(name: str | None) -> int:
    try:
        return Path(name).stat().st_size if name else 0
    except OSError:
        return 0  # whoever opens it says what is wrong


def _ended(status: int) -> str:
    why = f"signal {-status}" if status < 0 else f"status {status}"
    memory = ", as it is for taking too much memory" if status == -9 else ""
    return f"its helper process was ended by {why}{memory}"
