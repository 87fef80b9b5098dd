"""Have a worker forked by a process that has imported its code: `proxy.worker.template`.

The first command on a data directory starts that process, and the next ones find it until it has been idle for a while. A command
that is run otherwise than the first (another user, namespace, limit, code) starts its worker itself.
"""

import asyncio
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

from proxy.capture.control_path import control_path
from proxy.processes.child_process import UNKNOWN_STATUS
from proxy.processes.process_context import describe_context
from store.datadir import DataDir

BACKLOG: Final = 64
MAX_REQUEST_BYTES: Final = 100_000
"""As much as a socket holds for a process that does not read yet."""

TEMPLATE: Final = "proxy.worker.template"
TEMPLATE_LOG: Final = "template.log"


class ForkedProcess:
    """A process that a template has forked, with what Playhead uses of `asyncio.subprocess.Process`."""

    def __init__(
        self,
        pid: int,
        stdin: "OneWayWriter",
        stdout: asyncio.StreamReader,
        answers: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._answers = answers
        # Until its template has waited for it, no other process gets its number.
        self._handle = os.pidfd_open(pid)
        self._ending = asyncio.Lock()

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit status."""
        async with self._ending:
            if self.returncode is None:
                line = await self._answers[0].readline()
                if not line:
                    await _wait_until_readable(self._handle)
                self.returncode = json.loads(line)["ended"] if line else UNKNOWN_STATUS
                self._answers[1].close()
                self.stdin.finish()
                os.close(self._handle)
        return self.returncode

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self.returncode is None:
            try:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended

    async def communicate(self) -> tuple[bytes, bytes]:
        """Wait until it has ended, and return the rest of what it said."""
        self.stdin.close()
        rest = await self.stdout.read()
        await self.wait()
        return rest, b""


class OneWayWriter:
    """The writing half of a socket whose other half is read: closing it ends what the other side reads."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._is_closed = False

    def write(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionError."""
        if self._is_closed or self._writer.is_closing():
            raise BrokenPipeError
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the other side takes more."""
        await self._writer.drain()

    def close(self) -> None:
        """End this direction. The other one goes on."""
        if not self._is_closed and not self._writer.is_closing():
            self._writer.write_eof()
        self._is_closed = True

    def finish(self) -> None:
        """Close both directions."""
        self._writer.close()


class RequestedFork:
    """A worker that a template was asked for."""

    def __init__(self, connection: socket.socket, stdio: socket.socket) -> None:
        self._connection = connection
        self._stdio = stdio
        self._was_awaited = False

    async def process(self) -> ForkedProcess | None:
        """Return the worker when it has been forked; None if the template refuses, and when this was called before."""
        if self._was_awaited:
            return None
        self._was_awaited = True
        answers = await asyncio.open_unix_connection(sock=self._connection)
        pid = None
        try:
            line = await answers[0].readline()
            if pid := json.loads(line or b"{}").get("pid"):
                stdout, writer = await asyncio.open_unix_connection(sock=self._stdio)
                return ForkedProcess(pid, OneWayWriter(writer), stdout, answers)
        except ConnectionError:
            pass
        finally:
            if not pid:
                answers[1].close()
                self._stdio.close()
        return None


def request_fork(data: DataDir, log: int, idle_timeout: int) -> RequestedFork | None:
    """Ask for a worker whose stderr is `log`. None if there can be no such one: then start it."""
    context = describe_context()
    # Workers remove the sockets of killed workers by their suffix.
    path = control_path(data.root, "template").with_suffix(".fork")
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in os.environb.items()}
    request = json.dumps({"context": context, "environment": environment}).encode() + b"\n"
    if context is None or not path.is_relative_to(data.root) or len(request) > MAX_REQUEST_BYTES:
        return None
    ours, theirs = socket.socketpair()
    try:
        connection = _connect(path) or _start_template(path, data.logs / TEMPLATE_LOG, idle_timeout)
        with theirs:
            _pass_files(connection, theirs.fileno(), log)
            connection.sendall(request)
    except OSError:
        ours.close()
        return None
    return RequestedFork(connection, ours)


def _connect(path: Path) -> socket.socket | None:
    """Connect to a template of this user that listens there, if there is one."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.fspath(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError:
        connection.close()
        raise
    if peer_of(connection)[1] == os.geteuid():
        return connection
    connection.close()
    raise PermissionError(errno.EPERM, "another user's process listens there", os.fspath(path))


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user on the other side of a unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return pid, user


def _pass_files(connection: socket.socket, stdio: int, log: int) -> None:
    """Pass what the worker reads and writes, its log and the working directory, with the first byte of the request."""
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        socket.send_fds(connection, [b" "], [stdio, log, directory])
    finally:
        os.close(directory)


def _start_template(path: Path, log: Path, idle_timeout: int) -> socket.socket:
    """Start a template that listens there, and connect to it, which need not wait until it has started."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as listener, log.open("ab") as stderr:
        listener.bind(os.fspath(unfinished))
        unfinished.chmod(0o600)
        listener.listen(BACKLOG)
        arguments = (listener.fileno(), path, unfinished.stat().st_ino, log, idle_timeout)
        process = subprocess.Popen(
            [sys.executable, "-m", TEMPLATE, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            pass_fds=(listener.fileno(),),
        )
        # It goes on without us, which subprocess would warn of.
        process.returncode = 0
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.fspath(unfinished))
        unfinished.rename(path)
        return connection


async def _wait_until_readable(handle: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(handle)
