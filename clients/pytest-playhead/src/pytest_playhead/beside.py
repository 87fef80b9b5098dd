"""The process beside this one that answers the tests: `playhead fixtures`, spoken to in JSON lines."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path

VERSION = 2
END_WITHIN = 10.0

THEIRS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONSAFEPATH")
"""What steers the suite's Python must not steer that of Playhead: its packages have plain names too."""

_TAIL = 2000


class BesideFailed(Exception):
    """It could not be started, is gone, or refuses; the message says why and what to do."""


class Beside:
    """The process, running. Its end is that of our end of the conversation, however we go."""

    def __init__(self, command: str, directory: Path, connection: socket.socket | None = None) -> None:
        """Start it, or speak over this connection to the one that has started us."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._to: IO[bytes]
        self._from: IO[bytes]
        if connection is not None:
            self._to, self._from = connection.makefile("wb"), connection.makefile("rb")
            connection.close()
        else:
            self._start(command, directory)
        try:
            ready = self._heard()["ready"]
            if ready["version"] != VERSION:
                raise BesideFailed(
                    f"{command} speaks version {ready['version']} with its plugins, and this pytest-playhead version"
                    f" {VERSION}; install the two of one release"
                )
        except BaseException:
            self.close()
            raise
        self.environment: dict[str, str] = ready["environment"]

    def _start(self, command: str, directory: Path) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        try:
            self._process = subprocess.Popen(
                [*shlex.split(command), "fixtures"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                cwd=directory,
                env={name: value for name, value in os.environ.items() if name not in THEIRS},
                # What a terminal sends is for pytest.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._said.close()
            raise BesideFailed(not_found(command, error)) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def ask(self, **line: Mapping[str, Any]) -> dict[str, Any]:
        """Say one thing and have the answer. Raises BesideFailed."""
        with self._lock:
            self._say(line)
            heard = self._heard()
        if "failed" in heard:
            raise BesideFailed(heard["failed"])
        done: dict[str, Any] = heard["done"]
        return done

    def close(self) -> None:
        """Let it end."""
        try:
            self._to.close()
        except BrokenPipeError:
            pass
        if self._process is None:
            # It ends when we do.
            self._from.close()
            return
        try:
            self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
        self._said.close()

    def _say(self, line: Mapping[str, Any]) -> None:
        try:
            self._to.write(json.dumps(line).encode() + b"\n")
            self._to.flush()
        except (OSError, ValueError) as error:
            raise BesideFailed(self._gone()) from error

    def _heard(self) -> dict[str, Any]:
        line = self._from.readline()
        if not line:
            raise BesideFailed(self._gone())
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _gone(self) -> str:
        if self._process is None:
            return "the process that answers the tests has closed its connection"
        code = self._process.wait(END_WITHIN)
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - _TAIL))
        words = self._said.read().decode("utf-8", "replace").strip()
        return words or f"the process beside the tests ended with {code} and said nothing"


def not_found(command: str, error: Exception) -> str:
    """What to do where Playhead cannot be started."""
    return (
        f"cannot start `{command} fixtures` ({error}). pytest-playhead needs Playhead itself beside it, in any environment:"
        " put `playhead` on the PATH, or say where it is with --playhead-command or PLAYHEAD_COMMAND"
    )
