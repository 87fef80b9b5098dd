"""Notice every connection that a command which is not captive opens past the proxy worker.

The kernel reports each `connect`, and each datagram with an address, of the command and of all that it starts, before
it happens (seccomp user notification, `proxy/capture/watch/notifier.py`): short connections are noticed as well, and static
binaries too. We only look, and let every call go on. Where the kernel has no such filter, the sockets of the process
tree are read from /proc at intervals (`proxy/capture/watch/polling.py`), which misses short ones.

Not seen: connections made by io_uring, by 32-bit programs, by a service that the command only asks to open one (docker,
D-Bus), by programs that protect their memory (setuid ones), and over UDP sockets that were connected for less than 20 ms.
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

from proxy.capture.watch.notifications import Supervisor
from proxy.capture.watch.polling import SocketPoller
from proxy.processes.user_command import wrapped

NOTIFIER: Final = Path(__file__).with_name("notifier.py")
PR_SET_CHILD_SUBREAPER: Final = 36
MOST: Final = 1000
"""Destinations that are told apart."""

type How = Literal["seccomp", "poll", "off"]
type Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """A destination that was reached, or tried, past the proxy worker."""

    protocol: str
    destination: str
    count: int

    @property
    def sentence(self) -> str:
        """What a gap says of it."""
        what = "datagrams were sent" if self.protocol == "udp" else "a connection was opened"
        times = f", {self.count} times" if self.count > 1 else ""
        return f"{what} to {self.destination} past the proxy{times}: what passed there was not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchResult:
    """What came of a command that was watched."""

    code: int
    how: How
    escapes: tuple[Escape, ...] = ()
    reason: str = ""
    """Why it was not watched by seccomp."""


class Seen:
    """Counts what went past the worker."""

    def __init__(self, own: Collection[Address]) -> None:
        self._own = {(_plain(host), port) for host, port in own}
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, protocol: str, host: str, port: int) -> None:
        """A connection or a datagram to this address."""
        host = _plain(host)
        if (host, port) in self._own:
            return
        key = protocol, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if key in self._counts or len(self._counts) < MOST:
            self._counts[key] += 1

    def escapes(self) -> tuple[Escape, ...]:
        """What was noted, the most frequent first."""
        found = self._counts.most_common()
        return tuple(Escape(protocol=protocol, destination=place, count=count) for (protocol, place), count in found)


async def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    own: Collection[Address],
    *,
    how: How = "seccomp",
    stdout: int | None = None,
) -> WatchResult:
    """Run a command as `wrapped` does, and say what it opened elsewhere than to our `own` addresses."""
    seen = Seen(own)
    if sys.platform != "linux" or how == "off":
        reason = "" if how == "off" else "connections can be watched on Linux only"
        return WatchResult(code=await wrapped(command, environment, stdout), how="off", reason=reason)
    if how == "seccomp":
        return await _by_seccomp(command, environment, seen, stdout)
    return await _by_polling(command, environment, seen, stdout, "")


async def _by_seccomp(
    command: Sequence[str], environment: Mapping[str, str], seen: Seen, stdout: int | None
) -> WatchResult:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.set_inheritable(True)
    _adopt_orphans()
    line = [sys.executable, "-I", "-S", str(NOTIFIER), "become", str(theirs.fileno())]
    line += ["keep-environment" if "LC_CTYPE" in environment else "unset-lc-ctype", *command]
    supervisor, polling = Supervisor(ours, seen), SocketPoller(seen)
    supervisor.start()

    def started(pid: int) -> None:
        theirs.close()
        polling.pid = pid

    try:
        async with _beside(_fall_back(supervisor, polling)):
            code = await wrapped(line, environment, stdout, started)
    finally:
        theirs.close()
        listener = await asyncio.to_thread(supervisor.stop)
    if listener is not None:
        _let_pass(listener)
    how: How = "seccomp" if supervisor.reason is None else "poll"
    return WatchResult(code=code, how=how, escapes=seen.escapes(), reason=supervisor.reason or "")


def _adopt_orphans() -> None:
    """Become the parent of what loses its own, where only an ancestor may read where a process connects to (Yama)."""
    with suppress(OSError):
        restricted = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() != "0"
        if restricted and os.geteuid() != 0:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def _fall_back(supervisor: Supervisor, polling: SocketPoller) -> None:
    """Poll where the filter could not be installed."""
    await asyncio.to_thread(supervisor.begun.wait)
    if supervisor.reason is not None:
        await polling.run()


async def _by_polling(
    command: Sequence[str], environment: Mapping[str, str], seen: Seen, stdout: int | None, reason: str
) -> WatchResult:
    polling = SocketPoller(seen)

    def started(pid: int) -> None:
        polling.pid = pid

    async with _beside(polling.run()):
        code = await wrapped(command, environment, stdout, started)
    return WatchResult(code=code, how="poll", escapes=seen.escapes(), reason=reason)


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have this done for as long as the context lasts."""
    task = asyncio.Task(work, loop=asyncio.get_running_loop())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _let_pass(listener: int) -> None:
    """Leave somebody behind who lets the calls of those go on that outlive the command; else they would fail."""
    try:
        os.set_inheritable(listener, True)
        null = os.open(os.devnull, os.O_RDWR)
        line = [sys.executable, "-I", "-S", str(NOTIFIER), "pass", str(listener)]
        with suppress(OSError):
            os.posix_spawn(
                sys.executable,
                line,
                {},
                setsid=True,
                file_actions=[(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)],
            )
        os.close(null)
    finally:
        os.close(listener)


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host
