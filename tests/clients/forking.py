"""Run Python programs as forks of a process that has imported them: to import them again takes a second for each.

    forking.py KIND SOCKET      import what the kind needs, and fork for each client until nobody uses it (tests/support/shared.py)

A client (`calling.py`, `suite_directory.py`) passes its directory, environment, arguments and files, and gets the exit status; the
program is stopped when it leaves before. Only the standard library is imported here, and none of this checkout's packages, so
that a pytest that is forked finds its own suite's.
"""

import gc
import marshal
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

_LONGEST_MESSAGE: Final = 1 << 17
_SUPPORT: Final = Path(__file__).resolve().parents[1] / "support"


def _import_pytest() -> None:
    # No plugin, whose assertions pytest rewrites when it imports it.
    from _pytest.config import default_plugins

    for name in (*(f"_pytest.{plugin}" for plugin in default_plugins), "requests", "httpx", "openai", *OPENAI):
        import_module(name)
    # What pytest makes of our plugin's modules is kept beside them, if they may be written: suites themselves write nothing.
    if (pid := os.fork()) == 0:
        _collect_nothing()
    os.waitpid(pid, 0)


OPENAI: Final = ("openai.resources.chat.completions.completions", "httpx2", "httpcore2")
"""What OpenAI's SDK imports with the first call."""


def _collect_nothing() -> NoReturn:
    """Have pytest import the plugin."""
    import pytest

    sys.dont_write_bytecode = False
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients" / "pytest-playhead" / "src"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    pytest.main(["-p", "pytest_playhead", "-p", "no:cacheprovider", "--rootdir", "/", "-c", os.devnull, "--version"])
    os._exit(0)


def _run_pytest() -> int:
    import pytest

    # As `python -m pytest` has it.
    sys.path[:0] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return int(pytest.main(sys.argv[1:]))


def _import_fixtures() -> None:
    import_module("proxy.cli.fixtures")
    for name in ("proxy.lane.lane", "calls.keys.jsonpath"):
        import_module(name)
    runpy.run_path(str(_SUPPORT / "roots.py"))["use_one_root"]()
    runpy.run_path(str(_SUPPORT / "clusters.py"))["use_copies"]()
    # What depends on no settings is computed once as well: profiles and expressions are cached.
    from calls.redaction.redactor import Redactor
    from store.active_profiles import load_profiles

    Redactor(key=bytes(32), profiles=load_profiles(None)).prepare()


def _run_playhead() -> int:
    from proxy.cli import main

    main()
    return 0


KINDS: Final[dict[str, tuple[Callable[[], None], Callable[[], int]]]] = {
    "pytest": (_import_pytest, _run_pytest),
    "playhead": (_import_fixtures, _run_playhead),
}


class Server:
    """Forks for each client, and tells it how the program ended."""

    def __init__(self, listener: socket.socket, program: Callable[[], int]) -> None:
        self._listener = listener
        self._program = program
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """By a handle of the process, its number and its client."""
        self._waiting: dict[socket.socket, int] = {}
        """The number of each client's program that has not been stopped."""

    def serve(self, path: str) -> None:
        """Serve until nobody uses this process."""
        has_no_users = runpy.run_path(str(_SUPPORT / "shared.py"))["has_no_users"]
        while True:
            ready, _, _ = select.select([self._listener, sys.stdin, *self._running, *self._waiting], [], [])
            for one in ready:
                if one is self._listener:
                    self._start(self._listener.accept()[0])
                elif one in self._running:
                    self._tell_end(one)
                elif one in self._waiting:
                    os.kill(self._waiting.pop(one), signal.SIGTERM)
            if sys.stdin in ready and has_no_users(path):
                return

    def _start(self, client: socket.socket) -> None:
        message, files, _, _ = socket.recv_fds(client, _LONGEST_MESSAGE, 3)
        if not message:
            client.close()
            return
        if (pid := os.fork()) == 0:
            self._become_program(client, marshal.loads(message), files)
        for file in files:
            os.close(file)
        self._running[os.pidfd_open(pid)] = pid, client
        self._waiting[client] = pid

    def _become_program(self, client: socket.socket, request: dict[str, Any], files: list[int]) -> NoReturn:
        for handle, (_, other) in self._running.items():
            os.close(handle)
            other.close()
        self._listener.close()
        client.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.setsid()
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [sys.argv[0], *request["arguments"]]
        sys.exit(self._program())

    def _tell_end(self, handle: int) -> None:
        pid, client = self._running.pop(handle)
        self._waiting.pop(client, None)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        try:
            client.send(str(os.waitstatus_to_exitcode(status)).encode())
        except BrokenPipeError:
            pass
        client.close()


def main(kind: str, path: str) -> None:
    """Import, and serve."""
    prepare, program = KINDS[kind]
    gc.disable()
    prepare()
    gc.collect()
    gc.freeze()
    gc.enable()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, b"ready\n")
        os.dup2(2, 1)  # whoever started it reads no more
        Server(listener, program).serve(path)


if __name__ == "__main__":
    # This directory is none of the program's.
    del sys.path[0]
    main(*sys.argv[1:])
