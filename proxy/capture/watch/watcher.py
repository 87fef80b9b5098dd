"""Notice every connection that a command which is not captive opens past the proxy worker.

The kernel reports each `connect`, and each datagram with an address, of the command and the processes that it starts,
before it happens (seccomp user notification, `proxy/capture/watch/notifier.py`). So short connections and those of static
binaries are noticed too. Every call continues unchanged. If the kernel does not support this, the sockets of the process
tree are polled in /proc (`proxy/capture/watch/polling.py`), which misses short connections.

Connections are not noticed if they are made by io_uring, by 32-bit programs, by a service on behalf of the command
(docker, D-Bus), by programs that protect their memory (setuid ones), or over UDP sockets that were connected for less
than 100 ms.
"""

import asyncio
import ctypes
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from proxy.capture.watch.local_services import IO_URING_REFUSAL
from proxy.capture.watch.notifications import Supervisor
from proxy.capture.watch.polling import SocketPoller
from proxy.capture.watch.survivors import NOTIFIER, start_answering_process
from proxy.processes.user_command import run_user_command

PR_SET_CHILD_SUBREAPER: Final = 36
MAX_DESTINATIONS: Final = 1000
"""Destinations that are counted. Others are ignored."""

type How = Literal["seccomp", "poll", "off"]
type Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """A destination to which connections were opened, or tried, past the proxy worker."""

    protocol: str
    destination: str
    count: int
    is_refused: bool = False

    @property
    def sentence(self) -> str:
        """The reason of the gap that this escape becomes, or why it was refused."""
        if self.protocol == "io_uring":
            return IO_URING_REFUSAL
        if self.is_refused:
            return "its client ignores the proxy variables, and a replay makes no connection past the proxy"
        what = "datagrams were sent" if self.protocol == "udp" else "a connection was opened"
        place = f"{self.protocol} {self.destination}" if self.protocol in ("unix", "vsock") else self.destination
        times = f", {self.count} times" if self.count > 1 else ""
        return f"{what} to {place} past the proxy{times}: what passed there was not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchResult:
    """The result of a command that was watched."""

    code: int
    how: How
    escapes: tuple[Escape, ...] = ()
    reason: str = ""
    """Why it was not watched with seccomp; empty if it was."""


class EscapeCounter:
    """Counts the destinations that were reached past the worker."""

    def __init__(self, own: Collection[Address]) -> None:
        self._own = {(_plain_host(host), port) for host, port in own}
        self._counts: Counter[tuple[str, str, bool]] = Counter()

    def is_own(self, host: str, port: int) -> bool:
        """Whether this address is one of Playhead's own, or one that may be reached."""
        return (_plain_host(host), port) in self._own

    def note(self, protocol: str, host: str, port: int, *, is_refused: bool = False) -> None:
        """Count a connection or a datagram to this address, unless it is one of Playhead's own."""
        host = _plain_host(host)
        if (host, port) in self._own:
            return
        if protocol in ("unix", "vsock", "io_uring"):
            key = protocol, host, is_refused
        else:
            key = protocol, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", is_refused
        if key in self._counts or len(self._counts) < MAX_DESTINATIONS:
            self._counts[key] += 1

    def escapes(self) -> tuple[Escape, ...]:
        """Return the escapes, the most frequent first."""
        found = self._counts.most_common()
        return tuple(
            Escape(protocol=protocol, destination=place, count=count, is_refused=is_refused)
            for (protocol, place, is_refused), count in found
        )


async def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    own: Collection[Address],
    *,
    how: How = "seccomp",
    stdout: int | None = None,
    refuses: bool = False,
) -> WatchResult:
    """Run a command like `run_user_command`, and note its connections to other addresses than `own`.

    `refuses`: these are refused where system calls can be watched; polling notices them when they are made.
    """
    counter = EscapeCounter(own)
    if sys.platform != "linux" or how == "off":
        reason = "" if how == "off" else "connections can be watched on Linux only"
        return WatchResult(code=await run_user_command(command, environment, stdout), how="off", reason=reason)
    if how == "seccomp":
        return await _run_with_seccomp(command, environment, counter, stdout, refuses=refuses)
    return await _run_with_polling(command, environment, counter, stdout, "")


async def _run_with_seccomp(
    command: Sequence[str],
    environment: Mapping[str, str],
    counter: EscapeCounter,
    stdout: int | None,
    *,
    refuses: bool,
) -> WatchResult:
    own_end, command_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command_end.set_inheritable(True)
    _adopt_orphans()
    line = [
        sys.executable,
        "-I",
        "-S",
        str(NOTIFIER),
        "become",
        str(command_end.fileno()),
        "refuse" if refuses else "pass",
    ]
    line += ["keep-environment" if "LC_CTYPE" in environment else "unset-lc-ctype", *command]
    supervisor, polling = Supervisor(own_end, counter, refuses=refuses), SocketPoller(counter)
    supervisor.start()

    def on_start(pid: int) -> None:
        command_end.close()
        polling.pid = pid

    try:
        async with _run_beside(_fall_back(supervisor, polling)):
            code = await run_user_command(line, environment, stdout, on_start)
    finally:
        command_end.close()
        listener = await asyncio.to_thread(supervisor.stop)
    if listener is not None:
        start_answering_process(listener, refuses=refuses)
    how: How = "seccomp" if supervisor.reason is None else "poll"
    return WatchResult(code=code, how=how, escapes=counter.escapes(), reason=supervisor.reason or "")


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants, because Yama may allow only ancestors to read a process's memory."""
    with suppress(OSError):
        restricted = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() != "0"
        if restricted and os.geteuid() != 0:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def _fall_back(supervisor: Supervisor, polling: SocketPoller) -> None:
    """Poll if the filter could not be installed."""
    await asyncio.to_thread(supervisor.has_begun.wait)
    if supervisor.reason is not None:
        await polling.run()


async def _run_with_polling(
    command: Sequence[str], environment: Mapping[str, str], counter: EscapeCounter, stdout: int | None, reason: str
) -> WatchResult:
    polling = SocketPoller(counter)

    def on_start(pid: int) -> None:
        polling.pid = pid

    async with _run_beside(polling.run()):
        code = await run_user_command(command, environment, stdout, on_start)
    return WatchResult(code=code, how="poll", escapes=counter.escapes(), reason=reason)


@asynccontextmanager
async def _run_beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run this as a task while the block runs."""
    task = asyncio.Task(work, loop=asyncio.get_running_loop())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _plain_host(host: str) -> str:
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host
