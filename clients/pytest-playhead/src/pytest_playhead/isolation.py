"""Start this pytest again in a network of its own, in which every connection arrives at the process beside it.

`playhead fixtures -- PYTEST` makes the network and becomes the parent of the new pytest, which inherits a socket to it.
Nothing is imported yet and no test has run when that happens. xdist's workers are each started that way.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_playhead.beside import THEIRS, BesideFailed, not_found

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

ISOLATIONS = ("require", "auto", "off")

SOCKET = "PLAYHEAD_PYTEST_SOCKET"
NOT_CAPTIVE = "PLAYHEAD_PYTEST_NOT_CAPTIVE"
SUITE = "PLAYHEAD_SUITE_"


def inherited_socket() -> socket.socket | None:
    """The socket to the process that started us captive. No child of ours inherits it, nor its name."""
    descriptor = os.environ.pop(SOCKET, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return socket.socket(fileno=int(descriptor))


def failure_from_before() -> str | None:
    """Why we could not be captive, where that was tried."""
    return os.environ.pop(NOT_CAPTIVE, None)


def reason_not_to_start_again(config: pytest.Config) -> str | None:
    """Why this process cannot be started again as it was."""
    if sys.platform != "linux":
        return f"network namespaces are a feature of Linux, and this is {sys.platform}"
    if "PYTEST_XDIST_WORKER" in os.environ:
        return "this worker of xdist was not started by --numprocesses on this machine"
    if list(config.invocation_params.args) != sys.argv[1:]:
        return "pytest was started from within a program, which would be started again; start it by a command"
    return None


def start_again(config: pytest.Config, command: str, root: Path) -> NoReturn:
    """Become `playhead fixtures`, which starts this pytest once more, captive. Raises BesideFailed."""
    line = Path("/proc/self/cmdline").read_bytes().split(b"\0")[1:-1]
    words = [*_launcher(command, root), sys.executable, *map(os.fsdecode, line)]
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        # The terminal is ours again.
        capture.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, _for_launcher(os.environ))  # noqa: S606 - as the user has set it
    except (OSError, ValueError) as error:
        raise BesideFailed(not_found(command, error)) from error


def captive_interpreter(command: str, root: Path) -> str:
    """What execnet is to start in place of Python, for a worker that is captive."""
    theirs = [name for name in THEIRS if name in os.environ]
    around = ["env", *(part for name in theirs for part in ("-u", name))]
    return shlex.join(
        [*around, *(f"{SUITE}{name}={os.environ[name]}" for name in theirs), *_launcher(command, root), sys.executable]
    )


def _launcher(command: str, root: Path) -> list[str]:
    words = shlex.split(command)
    if words and "/" in words[0]:
        words[0] = str(root / words[0])
    return [*words, "fixtures", "--directory", str(root), "--"]


def _for_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """What steers the suite's Python steers it under another name, so that it does not steer Playhead's."""
    return {f"{SUITE}{name}" if name in THEIRS else name: value for name, value in environment.items()}
