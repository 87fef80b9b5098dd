"""Start a command's proxy worker before the command imports its code and reads its settings: both take as long as the worker's start.

So it is on Linux, where no process stays ready from which the worker could be forked, as in CI. The worker is a fork of the command's
own process, which has then imported what both need: no second interpreter starts, and these modules are imported once. A command that
then needs no worker of its own ends this one.
"""

import gc
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from proxy.processes.early_process import EarlyProcess

COMMANDS: Final = ("record", "replay")
"""The commands that need a worker."""

HELP: Final = ("-h", "--help")
MODULE: Final = "proxy.worker.process"

NEEDED_BY_BOTH: Final = (
    "asyncio",
    "tempfile",
    "proxy.processes.child_process",
    "proxy.worker_config",
    "store.datadir",
    "store.log_format",
    "store.run_tokens",
)
"""What the worker and the command line import in any case, with all that these import: a third of either's imports."""


class EarlyWorker:
    """A worker that waits for its configuration. It is taken once, or ended."""

    def __init__(self) -> None:
        self._stdio, theirs = socket.socketpair()
        # Until the configuration names its log.
        self._stderr = os.memfd_create("early-worker")
        self._log: int | None = None
        # A collection would write to all objects, and so copy the pages that both processes share.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            self._stdio.detach()
            _run_worker(theirs.detach(), self._stderr)
        from proxy.processes.early_process import ForkedChild

        theirs.close()
        self._process = ForkedChild(pid)

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


def _run_worker(stdio: int, stderr: int) -> NoReturn:
    """Be a worker's process, as `child_process` starts one, in this fork."""
    os.setsid()
    for source, target in ((stdio, 0), (stdio, 1), (stderr, 2)):
        os.dup2(source, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ["PYTHONSAFEPATH"] = "1"
    # For people who list processes: it has the command's arguments.
    with open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("playhead-worker")
    # It enables the collector when it is ready.
    sys.exit(import_module(MODULE).run_worker())


_waiting: list[EarlyWorker] = []


def start_early_worker(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the worker of this command line, if it is of a command that will start one. In the worker this raises SystemExit."""
    if sys.platform != "linux" or "--" not in arguments or not keeps_nothing(environment):
        return
    # A command without a worker does not need it here.
    from proxy.processes.process_context import too_low_file_limit

    if too_low_file_limit() is not None:
        return  # the command reports it
    options = arguments[: list(arguments).index("--")]
    if options and options[0] in COMMANDS and not set(HELP) & set(options):
        for name in NEEDED_BY_BOTH:
            import_module(name)
        if not is_served_by_up(options, environment):
            _waiting.append(EarlyWorker())


def is_served_by_up(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the workers of a running `up` will serve the command, as far as that is known before its settings are read."""
    from store.datadir import DataDir, default_data_directory

    if options[0] != "record":
        return False  # a replay has a worker of its own
    places = [value for option, value in pairwise(options) if option == "--data"]
    places += [option.removeprefix("--data=") for option in options if option.startswith("--data=")]
    try:
        data = DataDir(Path(places[-1] if places else environment.get("PLAYHEAD_DATA") or default_data_directory()))
        return data.up_lock.is_held() and (data.read_notice("up") or {}).get("mode") in ("record", "auto")
    except (OSError, ValueError):
        return False  # the command reports it


def keeps_nothing(environment: Mapping[str, str]) -> bool:
    """Whether the environment says that no process stays ready, whatever the settings say."""
    return is_ci(environment) or is_within_command(environment) or environment.get("PLAYHEAD_STORE_IDLE") == "0"


def is_within_command(environment: Mapping[str, str]) -> bool:
    """Whether another `record` or `replay` runs this: what stays ready in the network of its command, no later command reaches."""
    return "PLAYHEAD_RUN" in environment


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
