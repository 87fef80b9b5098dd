"""A proxy worker that was started early (`proxy.processes.early_worker`), as `proxy.processes.child_process` uses a process."""

import asyncio
import os
import signal

from proxy.processes.forked_process import OneWayWriter


class ForkedChild:
    """A child of this process, with what Playhead uses of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait until it ends, and return its exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        """Kill it if nobody has waited for it, so that no other process can have its number."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


class EarlyProcess:
    """The process, with what Playhead uses of `asyncio.subprocess.Process`."""

    def __init__(
        self,
        process: ForkedChild,
        stdio: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        stderr: int,
        log: int,
    ) -> None:
        """`stderr`: the descriptor of what it writes before it knows its log; `log`: that of its log."""
        self.stdout = stdio[0]
        self.stdin = OneWayWriter(stdio[1])
        self._process = process
        self._stderr: int | None = stderr
        self._log = os.dup(log)

    @property
    def returncode(self) -> int | None:
        """Its exit status, once somebody has waited for it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit status. What it wrote without a log is in the log then."""
        if self._process.returncode is None:
            await _wait_for_end(self._process.pid)
        if self._stderr is not None:
            self.stdin.finish()
            os.write(self._log, os.pread(self._stderr, os.fstat(self._stderr).st_size, 0))
            os.close(self._stderr)
            os.close(self._log)
            self._stderr = None
        return self._process.wait()

    async def communicate(self) -> tuple[bytes, bytes]:
        """Wait until it has ended, and return the rest of what it said."""
        self.stdin.close()
        rest = await self.stdout.read()
        await self.wait()
        return rest, b""

    def kill(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()


async def _wait_for_end(pid: int) -> None:
    # Nobody else waits for the process, so no other has its number.
    handle = os.pidfd_open(pid)
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, is_over.set)
    try:
        await is_over.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
