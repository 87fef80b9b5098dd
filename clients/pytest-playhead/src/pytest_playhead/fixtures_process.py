"""Run `playhead fixtures`, the process that answers the tests, and talk to it in JSON lines."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any

from pytest_playhead.shared_process import (
    connect_shared,
    fixtures_command,
    fixtures_environment,
    not_found_message,
    read_tail,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path

VERSION = 5
STOP_TIMEOUT = 10.0


class FixturesError(Exception):
    """The process could not be started, has ended, or refused a request; the message says why and what to do."""


class FixturesProcess:
    """The running process. It ends when this end of the connection is closed, however this process ends."""

    def __init__(
        self, command: str, directory: Path, connection: socket.socket | None = None, *, is_replay_only: bool = False
    ) -> None:
        """Start the process, or use a connection: to the one that started this process, or that xdist workers share."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._to: IO[bytes]
        self._from: IO[bytes]
        options = ["--replay-only"] if is_replay_only else []
        connection = connection or connect_shared(command, directory, options)
        if connection is not None:
            self._to, self._from = connection.makefile("wb"), connection.makefile("rb")
            connection.close()
        else:
            self._start(command, directory, options)
        try:
            reply = self._receive()
            if "failed" in reply:
                raise FixturesError(reply["failed"])
            ready = reply["ready"]
            if ready["version"] != VERSION:
                raise FixturesError(
                    f"{command} speaks version {ready['version']} of the plugin protocol, and this pytest-playhead version"
                    f" {VERSION}; install matching versions of playhead and pytest-playhead"
                )
        except BaseException:
            self.close()
            raise
        self.environment: dict[str, str] = ready["environment"]

    def _start(self, command: str, directory: Path, options: list[str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is needed as long as the process runs
        try:
            self._process = subprocess.Popen(
                fixtures_command(command, options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=directory,
                env=fixtures_environment(),
                # Signals of the terminal are for pytest.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._stderr.close()
            raise FixturesError(not_found_message(command, error)) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def request(self, **line: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return the reply. Raises FixturesError."""
        with self._lock:
            self._send(line)
            reply = self._receive()
        if "failed" in reply:
            raise FixturesError(reply["failed"])
        result: dict[str, Any] = reply["done"]
        return result

    def close(self) -> None:
        """Close the connection and wait for the process to end."""
        try:
            self._to.close()
        except BrokenPipeError:
            pass
        if self._process is None:
            # The process ends after this one.
            self._from.close()
            return
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
        self._stderr.close()

    def _send(self, line: Mapping[str, Any]) -> None:
        try:
            self._to.write(json.dumps(line).encode() + b"\n")
            self._to.flush()
        except (OSError, ValueError) as error:
            raise FixturesError(self._exit_message()) from error

    def _receive(self) -> dict[str, Any]:
        line = self._from.readline()
        if not line:
            raise FixturesError(self._exit_message())
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _exit_message(self) -> str:
        if self._process is None:
            return "the process that answers the tests has closed its connection"
        code = self._process.wait(STOP_TIMEOUT)
        return (
            read_tail(self._stderr) or f"the process that answers the tests ended with exit code {code} and no message"
        )
