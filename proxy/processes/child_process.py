"""Start a child process: it reads its configuration as a JSON line on stdin, and answers with one on stdout when ready.

Its stdin stays open while it runs, so that it ends when its parent is killed.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol, Self

import msgspec

from proxy.errors import PROCESS_LIMIT, Failure, is_process_limit
from proxy.processes.log_files import open_log

GRACE = 4.5
"""Seconds that a process may take to stop before it is killed. Workers stop first, then the store server, in 10 s."""

UNKNOWN_STATUS = 254
"""The exit status of a process of which nobody knows how it ended: the one that forked it was killed."""

ORPHANS_INTERVAL = 10.0
"""Seconds between two looks for dead orphans. The ends of our own processes are taken note of sooner."""

STOP = b"stop\n"
"""The last line that a process reads when it is stopped. If stdin ends without it, the parent was killed."""


class ChildFailure(Failure):
    """A child process ended before it was ready. `message` has what it wrote instead, if anything."""

    def __init__(self, text: str, message: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.message = message


class Input(Protocol):
    """What a process reads."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class StartedProcess(Protocol):
    """A process that was started for us: `asyncio.subprocess.Process` or `ForkedProcess`."""

    @property
    def stdin(self) -> Input | None: ...
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    async def communicate(self) -> tuple[bytes, bytes]: ...
    def kill(self) -> None: ...


class RequestedProcess(Protocol):
    """A process that another one was asked to fork."""

    async def process(self) -> StartedProcess | None: ...


type RequestFork = Callable[[int], RequestedProcess | None]
"""Asks for a process whose stderr is this file. None, now or later: it has to be started."""


class ChildProcess:
    """A running child process."""

    def __init__(self, log: Path, process: StartedProcess, ready: Mapping[str, Any]) -> None:
        self.name = log.stem
        self.log = log
        self.ready = ready
        self.is_killed = False
        """Whether we have killed it, because it took too long to stop."""

        self._process = process

    @classmethod
    async def start(
        cls,
        module: str,
        config: msgspec.Struct | Awaitable[msgspec.Struct],
        *,
        log: Path,
        request_fork: RequestFork | None = None,
        pass_fds: Sequence[int] = (),
        report_progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Start `python -m MODULE` and wait until it is ready. Raises ChildFailure with the process's own message if it has one.

        An awaitable configuration is awaited while the process starts. If it fails, the process is killed. `request_fork` may
        have it forked by a process that has imported the module. `pass_fds`: descriptors that a started process gets, too.
        `report_progress` is called with how far it is, if it says so before it is ready.
        """
        with os.fdopen(open_log(log), "ab") as stderr:
            begin = stderr.seek(0, os.SEEK_END)
            requested = request_fork(stderr.fileno()) if request_fork else None
            process: StartedProcess | None = None if requested else await _start_module(module, stderr, pass_fds)
            try:
                complete_config = config if isinstance(config, msgspec.Struct) else await config
                if requested is not None:
                    process = await requested.process()
                if process is None:
                    process = await _start_module(module, stderr, pass_fds)
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(msgspec.json.encode(complete_config) + b"\n")
                await process.stdin.drain()
                message = await _await_first_message(process.stdout, report_progress)
            except ConnectionError:
                message = {}
            except BaseException:
                if process is None and requested is not None:
                    process = await requested.process()
                if process is not None:
                    process.kill()
                    await process.communicate()
                raise
        assert process is not None
        if "ready" not in message:
            status = await process.wait()
            raise ChildFailure(message.get("failed") or f"{module} {_end(status, log, begin)} (more in {log})", message)
        return cls(log, process, message)

    async def messages(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the messages that the process writes to stdout after its first line."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            yield _parse_message(line)

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit status."""
        return await self._process.wait()

    async def stop(self) -> int:
        """Stop the process by closing its stdin, and kill it if it does not end. Returns its exit status."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(STOP)
            self._process.stdin.close()
        except ConnectionError:
            pass  # it has already ended
        try:
            async with asyncio.timeout(GRACE):
                return await self._process.wait()
        except TimeoutError:
            return await self.kill()

    def detach(self) -> None:
        """Let the process run on without its parent. Its stdin ends without STOP."""
        # asyncio kills the process of a transport that is closed or collected, unless it is closed already.
        transport: Any = vars(self._process)["_transport"]
        transport._closed = True
        # Or subprocess would warn that the process still runs.
        transport._proc.returncode = 0
        for number in (0, 1):
            transport.get_pipe_transport(number).close()

    def remove_empty_log(self) -> None:
        """Remove the log of an ended process if it is empty."""
        if self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()

    async def kill(self) -> int:
        """Kill the process if it still runs, and return its exit status."""
        if self._process.returncode is None:
            self.is_killed = True
            self._process.kill()
        return await self._process.wait()


async def _start_module(module: str, stderr: IO[bytes], pass_fds: Sequence[int]) -> asyncio.subprocess.Process:
    # It runs in its own session, so that Ctrl-C in the terminal reaches the parent alone, which stops things in order.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        pass_fds=pass_fds,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
    )


def describe_end(status: int) -> str:
    """Say how a process ended, by its exit status."""
    if status == -signal.SIGKILL:
        return "was killed (SIGKILL), as the kernel does when memory is short"
    if status < 0:
        return f"was ended by signal {-status} ({signal.strsignal(-status)})"
    return f"ended with status {status}"


def _end(status: int, log: Path, begin: int) -> str:
    """How a process ended that was not ready yet, by its exit status or what it logged."""
    if status == -signal.SIGKILL:
        return "was killed (SIGKILL) before it was ready, as the kernel does when memory is short"
    return f"ended before it was ready{_last_log_line(log, begin)}"


def _last_log_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").split("\n")
    if os.statvfs(log).f_bavail == 0:
        # It could not write what went wrong.
        return f": the disk at {log.parent} is full; free some space"
    # Skip the frames that are drawn around tracebacks of exception groups.
    last = next((line.strip(" |") for line in reversed(lines) if any(map(str.isalpha, line))), "")
    if is_process_limit(last):
        return f": {PROCESS_LIMIT}"
    return f": {last[:300]}" if last else ""


async def _await_first_message(
    stdout: asyncio.StreamReader, report_progress: Callable[[str], None] | None
) -> dict[str, Any]:
    """Return the first message that is not about progress alone: a process may be ready and not done."""
    while (message := _parse_message(await stdout.readline())).keys() == {"progress"}:
        if report_progress is not None:
            report_progress(str(message["progress"]))
    return message


def _parse_message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


async def reap_orphans(interval: float = ORPHANS_INTERVAL) -> None:
    """Reap children that have been dead for two looks, until cancelled. Does nothing unless this is process 1.

    A process whose parent ended, for instance one that `docker exec` left, becomes a child of process 1. In a container without an
    init nobody else takes note of its end, and it keeps its number, of which `pids.max` allows so many.
    """
    if os.getpid() != 1:
        return
    before: set[int] = set()
    while True:
        await asyncio.sleep(interval)
        dead = set(await asyncio.to_thread(lambda: [*_dead_children()]))
        for process in dead & before:
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)  # noqa: ASYNC222 - it returns at once
        before = dead


def _dead_children() -> Iterator[int]:
    own = str(os.getpid()).encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
                state, parent = stat[stat.rindex(b")") + 2 :].split(None, 2)[:2]
                if state == b"Z" and parent == own:
                    yield int(name)
