"""Restart this pytest in its own network namespace, in which every connection arrives at `playhead fixtures`.

`playhead fixtures -- PYTEST` creates the namespace and becomes the parent of the new pytest, which inherits a socket to it.
This happens before anything is imported and before any test has run. Each xdist worker is started in the same way.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_playhead.fixtures_process import FixturesError
from pytest_playhead.shared_process import PYTHON_VARIABLES, not_found_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

ISOLATIONS = ("require", "auto", "off")

SOCKET = "PLAYHEAD_PYTEST_SOCKET"
NOT_CAPTIVE = "PLAYHEAD_PYTEST_NOT_CAPTIVE"
RENAMED_PREFIX = "PLAYHEAD_SUITE_"


def inherited_socket() -> socket.socket | None:
    """The socket to the process that started this one captive. Child processes inherit neither it nor its variable."""
    descriptor = os.environ.pop(SOCKET, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return socket.socket(fileno=int(descriptor))


def earlier_failure() -> str | None:
    """The reason why an earlier attempt to be captive failed."""
    return os.environ.pop(NOT_CAPTIVE, None)


def reason_not_to_restart(config: pytest.Config) -> str | None:
    """The reason why this process cannot be restarted; None if it can."""
    if sys.platform != "linux":
        return f"network namespaces are a feature of Linux, and this is {sys.platform}"
    if "PYTEST_XDIST_WORKER" in os.environ:
        return "this xdist worker was not started by --numprocesses on this machine"
    if list(config.invocation_params.args) != sys.argv[1:]:
        return "pytest was started from within a program, which would be restarted as well; start pytest as a command"
    return None


def restart_captive(config: pytest.Config, command: str, root: Path) -> NoReturn:
    """Replace this process by `playhead fixtures`, which starts this pytest again, captive. Raises FixturesError."""
    line = Path("/proc/self/cmdline").read_bytes().split(b"\0")[1:-1]
    words = [*_launcher(command, root), sys.executable, *map(os.fsdecode, line)]
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        # Restore the terminal's file descriptors.
        capture.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, _for_launcher(os.environ))  # noqa: S606 - the user's own command
    except (OSError, ValueError) as error:
        raise FixturesError(not_found_message(command, error)) from error


def captive_interpreter(command: str, root: Path) -> str:
    """The command that execnet starts in place of Python, for a captive worker."""
    theirs = [name for name in PYTHON_VARIABLES if name in os.environ]
    around = ["env", *(part for name in theirs for part in ("-u", name))]
    return shlex.join(
        [
            *around,
            *(f"{RENAMED_PREFIX}{name}={os.environ[name]}" for name in theirs),
            *_launcher(command, root),
            sys.executable,
        ]
    )


def _launcher(command: str, root: Path) -> list[str]:
    words = shlex.split(command)
    if words and "/" in words[0]:
        words[0] = str(root / words[0])
    return [*words, "fixtures", "--directory", str(root), "--"]


def _for_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Rename the variables of the suite's Python, so that they do not affect Playhead's."""
    return {
        f"{RENAMED_PREFIX}{name}" if name in PYTHON_VARIABLES else name: value for name, value in environment.items()
    }
