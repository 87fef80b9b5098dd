"""Share one `playhead fixtures` process among the xdist workers of this machine.

The controller listens on a Unix socket in a directory of its own. When the first worker connects, it starts the process and passes
it that socket, over the socket that is its stdin. The process accepts all connections: each is a suite of its own, with its own
port, so workers do not affect one another. It ends with the controller. If it ends earlier, the next connection starts another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHARED_VARIABLE = "PLAYHEAD_PYTEST_SHARED"
"""The variable with the socket of the shared process, and the digest of what it was started with."""

PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONSAFEPATH")
"""Variables of the suite's Python that must not affect Playhead's, whose packages have plain names too."""

STOP_TIMEOUT = 10.0
LONGEST_ADDRESS = 100
"""Bytes that the path of a Unix socket may have, roughly."""

_TAIL = 2000


def fixtures_command(command: str, options: Sequence[str]) -> list[str]:
    """Return the command that starts the process."""
    return [*shlex.split(command), "fixtures", *options]


def fixtures_environment() -> dict[str, str]:
    """Return the environment in which the process is started."""
    return {name: value for name, value in os.environ.items() if name not in PYTHON_VARIABLES}


def not_found_message(command: str, error: Exception) -> str:
    """The message when Playhead cannot be started."""
    return (
        f"cannot start `{command} fixtures` ({error}). pytest-playhead needs Playhead itself, in any environment:"
        " put `playhead` on the PATH, or set its command with --playhead-command or PLAYHEAD_COMMAND"
    )


def read_tail(file: IO[bytes]) -> str:
    """Return the end of what a process has written to a file."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _TAIL))
    return file.read().decode("utf-8", "replace").strip()


class SharedProcess:
    """The controller's side: starts the process when a worker needs it. Raises OSError if there can be no socket."""

    def __init__(self, command: str, root: Path, options: Sequence[str]) -> None:
        self._command, self._root, self._options = command, root, options
        self._directory = Path(tempfile.mkdtemp(prefix="playhead-"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._stop, self._stop_sender = os.pipe()
        self._watchers: list[threading.Thread] = []
        try:
            address = str(self._directory / "s")
            if len(address) > LONGEST_ADDRESS:
                raise OSError(f"the path of a socket would be too long: {address}")
            self._listener.bind(address)
            self._listener.listen(64)
        except OSError:
            self._remove()
            raise
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        os.environ[SHARED_VARIABLE] = f"{_process_digest(command, root, options)}:{address}"

    def close(self) -> None:
        """End the process, and wait for it."""
        os.environ.pop(SHARED_VARIABLE, None)
        os.close(self._stop_sender)
        self._thread.join()
        for watcher in self._watchers:
            watcher.join()
        self._remove()

    def _remove(self) -> None:
        self._listener.close()
        os.close(self._stop)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self) -> None:
        while self._await_connection():
            message = self._run_process()
            if message is None:
                return
            # Connections that wait would otherwise wait for ever.
            self._refuse_connections(message)

    def _await_connection(self) -> bool:
        """Wait for a worker's connection, which the process will accept; False when the suite ends."""
        ready, _, _ = select.select([self._listener.fileno(), self._stop], [], [])
        return self._stop not in ready

    def _run_process(self) -> str | None:
        """Run the process. Return None when the suite has ended, else why the process has."""
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as errors, ours, theirs:
            try:
                process = subprocess.Popen(
                    fixtures_command(self._command, [*self._options, "--shared"]),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd=self._root,
                    env=fixtures_environment(),
                    # Signals of the terminal are for pytest.
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                return not_found_message(self._command, error)
            theirs.close()
            with suppress(OSError):
                # If the process has ended, its output says why.
                socket.send_fds(ours, [b"\n"], [self._listener.fileno()])
            watcher = threading.Thread(target=self._end_with_suite, args=(process, ours), daemon=True)
            watcher.start()
            self._watchers.append(watcher)
            code = process.wait()
            if select.select([self._stop], [], [], 0)[0]:
                return None
            return read_tail(errors) or f"the process that answers the tests ended with exit code {code} and no message"

    def _end_with_suite(self, process: subprocess.Popen[bytes], stdin: socket.socket) -> None:
        """Close the process's stdin when the suite ends, and kill it if it does not end."""
        select.select([self._stop], [], [])
        stdin.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()

    def _refuse_connections(self, message: str) -> None:
        self._listener.setblocking(False)
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                break
            with connection:
                try:
                    connection.sendall(json.dumps({"failed": message}).encode() + b"\n")
                except OSError:
                    pass  # the worker has gone
        self._listener.setblocking(True)


def connect_shared(command: str, root: Path, options: Sequence[str]) -> socket.socket | None:
    """Connect to the shared process of this xdist worker; None if there is none that was started with the same."""
    digest, _, address = os.environ.get(SHARED_VARIABLE, "").partition(":")
    if "PYTEST_XDIST_WORKER" not in os.environ or digest != _process_digest(command, root, options):
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def _process_digest(command: str, root: Path, options: Sequence[str]) -> str:
    """Return a digest of all that the process depends on, so that a pytest with another environment has its own."""
    environment: Mapping[str, str] = fixtures_environment()
    own = sorted((name, value) for name, value in environment.items() if not _is_of_pytest(name))
    return hashlib.sha256(json.dumps([command, str(root), list(options), own]).encode()).hexdigest()


def _is_of_pytest(name: str) -> bool:
    """Whether a variable differs between a controller and its workers without a meaning for Playhead."""
    return name.startswith("PYTEST_") or name in (SHARED_VARIABLE, "COLUMNS", "LINES")
