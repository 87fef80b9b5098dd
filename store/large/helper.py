"""Start a helper process when there is a job, give it one job at a time, and end it after it was idle."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from store.large.jobs import HelperConfig, HelperJob, Reply

TIME_LIMIT: Final = 60.0
"""Seconds that a job may take without a progress report, for a job without bytes (see `SECONDS_PER_BYTE`)."""

SECONDS_PER_BYTE: Final = 1e-6
"""Additional seconds for each byte of a job's files, or of the largest body that an answer may have."""

MEMORY_PER_BYTE: Final = 12
"""Bytes of memory that a helper process may have for each byte of the largest body."""

IDLE_TIMEOUT: Final = 15.0
"""Seconds after which a helper process without a job is ended, to free its memory."""

_MAX_LINE: Final = 1 << 20

HELPER_COMMAND: Final = (sys.executable, "-m", "store.large.worker")
"""Starts a helper process, which cannot check the overrides and forks of a requested replay."""


class Helper:
    """Runs jobs in one helper process, one after another. `run` never raises for an error of a job."""

    def __init__(
        self,
        config: HelperConfig,
        *,
        command: Sequence[str] = HELPER_COMMAND,
        time_limit: float = TIME_LIMIT,
        note_reply: Callable[[Reply], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._command = command
        self._time_limit = time_limit
        self._note_reply = note_reply
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._kill_timer: asyncio.TimerHandle | None = None
        self.peak = 0
        """The most resident memory, in bytes, that any of its processes has had."""

    async def run(self, job: HelperJob, on_progress: Callable[[Reply], None] = lambda _: None) -> Reply:
        """Run a job. A process that exceeds its limits is ended, and the reply has the reason.

        `on_progress` is called with each progress report of the job.
        """
        async with self._lock:
            if self._kill_timer is not None:
                self._kill_timer.cancel()
            time_limit = self._time_limit + SECONDS_PER_BYTE * await asyncio.to_thread(self._job_size, job)
            try:
                process = await self._ensure_process()
                async with asyncio.timeout(time_limit) as deadline:
                    reply = await self._send_job(process, job, _ProgressDeadline(deadline, time_limit, on_progress))
            except TimeoutError:
                await self.close()
                return Reply(failed=f"it took longer than {time_limit:.4g} s")
            except BaseException:
                await self.close()
                raise
            self.peak = max(self.peak, reply.peak)
            self._note_reply(reply)
            if reply.failed and not reply.is_unavailable:
                # A failed job may leave objects in memory.
                await self.close()
            else:
                self._kill_timer = asyncio.get_running_loop().call_later(IDLE_TIMEOUT, self._kill)
            return reply

    async def close(self) -> None:
        """End the helper process."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        process = self._process
        self._kill()
        if process is not None:
            await process.communicate()  # closes its pipes

    async def _ensure_process(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is not None:
            await self.close()
        if self._process is None:
            self._process = await self._start_process()
        return self._process

    def _job_size(self, job: HelperJob) -> int:
        """Bytes that a job has to read or write, for its time limit."""
        if job.store is not None:
            return _file_size(job.store.file)
        return _file_size(job.render.body if job.render else None) + self._config.memory_limit // MEMORY_PER_BYTE

    async def _send_job(
        self, process: asyncio.subprocess.Process, job: HelperJob, on_progress: Callable[[Reply], None]
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
                on_progress(reply)
        except ConnectionError:
            pass
        self._process = None
        await process.communicate()
        return Reply(failed=_exit_reason(process.returncode or 0))

    async def _start_process(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE,
            env=os.environ | {"PYTHONSAFEPATH": "1", "MALLOC_ARENA_MAX": "2"},
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._config) + b"\n")
        return process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()


class _ProgressDeadline:
    """Extends the deadline of a job with each progress report."""

    def __init__(self, deadline: asyncio.Timeout, patience: float, on_progress: Callable[[Reply], None]) -> None:
        self._deadline = deadline
        self._patience = patience
        self._on_progress = on_progress

    def __call__(self, reply: Reply) -> None:
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._patience)
        self._on_progress(reply)


def _file_size(name: str | None) -> int:
    try:
        return Path(name).stat().st_size if name else 0
    except OSError:
        return 0  # opening it reports the error


def _exit_reason(status: int) -> str:
    reason = f"signal {-status}" if status < 0 else f"status {status}"
    hint = ", possibly because it took too much memory" if status == -9 else ""
    return f"its helper process ended with {reason}{hint}"
