"""Start a command's proxy worker before the command imports its code and reads its settings: both take as long as the worker's start.

So it is on Linux, where no process stays ready from which the worker could be forked, as in CI. A command that then needs no worker of
its own ends this one.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from proxy.processes.early_process import EarlyProcess

COMMANDS: Final = ("record", "replay")
"""The commands that need a worker."""

HELP: Final = ("-h", "--help")
MODULE: Final = "proxy.worker.process"


class EarlyWorker:
    """A worker that waits for its configuration. It is taken once, or ended."""

    def __init__(self) -> None:
        self._stdio, theirs = socket.socketpair()
        # Until the configuration names its log.
        self._stderr = os.memfd_create("early-worker")
        self._log: int | None = None
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                # As `child_process` starts one.
                start_new_session=True,
                env=os.environ | {"PYTHONSAFEPATH": "1"},
            )

    def request(self, log: int) -> "EarlyWorker":
        """Return what `child_process` waits for, given the descriptor of its log."""
        self._log = log
        return self

    async def process(self) -> "EarlyProcess | None":
        """Return the process, once."""
        import asyncio

        from proxy.processes.early_process import EarlyProcess

        log, self._log = self._log, None
        if log is None:
            return None
        return EarlyProcess(self._process, await asyncio.open_unix_connection(sock=self._stdio), self._stderr, log)

    def end(self) -> None:
        """End the process, which nobody needs."""
        self._process.kill()
        self._process.wait()
        self._stdio.close()
        os.close(self._stderr)


_waiting: list[EarlyWorker] = []


def start_early_worker(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the worker of this command line, if it is of a command that will start one, and if none was started before."""
    if _waiting:
        return
    needs_one = arguments[:1] and arguments[0] in COMMANDS and "--" in arguments
    if sys.platform == "linux" and needs_one and not set(HELP) & set(arguments[: list(arguments).index("--")]):
        if keeps_nothing(environment):
            _waiting.append(EarlyWorker())


def keeps_nothing(environment: Mapping[str, str]) -> bool:
    """Whether the environment says that no process stays ready, whatever the settings say."""
    return is_ci(environment) or environment.get("PLAYHEAD_STORE_IDLE") == "0"


def is_ci(environment: Mapping[str, str]) -> bool:
    """Whether this is a CI machine, where nobody asks again, and files are copied."""
    return environment.get("CI", "").lower() not in ("", "0", "false")


def take_early_worker() -> EarlyWorker | None:
    """Return the worker that was started early, if there is one."""
    return _waiting.pop() if _waiting else None


def end_early_worker() -> None:
    """End the worker that was started early, if nobody took it."""
    if (worker := take_early_worker()) is not None:
        worker.end()
