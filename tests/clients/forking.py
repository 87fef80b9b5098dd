"""Run Python programs as forks of a process that has imported them: to import them again takes a second for each.

    forking.py serve KIND SOCKET      import what the kind needs, and fork for each client until stdin ends
    forking.py run SOCKET ARGUMENT…   run one program: with the directory, environment and files of this process

`run` ends with the exit status of the program. A program whose `run` is killed is stopped. Only the standard library is
imported here, and none of this checkout's packages, so that a pytest that is forked finds its own suite's.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

_LONGEST_MESSAGE: Final = 1 << 17


def _import_pytest() -> None:
    # No plugin, whose assertions pytest rewrites when it imports it.
    from _pytest.config import default_plugins

    for name in (*(f"_pytest.{plugin}" for plugin in default_plugins), "requests", "httpx"):
        import_module(name)


def _run_pytest() -> int:
    import pytest

    # As `python -m pytest` has it.
    sys.path[:0] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return int(pytest.main(sys.argv[1:]))


def _import_fixtures() -> None:
    import_module("proxy.cli.fixtures")
    for name in ("proxy.lane.lane", "calls.keys.jsonpath"):
        import_module(name)
    # What depends on no settings is computed once as well: profiles and expressions are cached.
    from calls.redaction.redactor import Redactor
    from store.active_profiles import load_profiles

    Redactor(key=bytes(32), profiles=load_profiles(None)).prepare_streams()


def _run_playhead() -> int:
    from proxy.cli import main

    main()
    return 0


KINDS: Final[dict[str, tuple[Callable[[], None], Callable[[], int]]]] = {
    "pytest": (_import_pytest, _run_pytest),
    "playhead": (_import_fixtures, _run_playhead),
}


def serve(kind: str, path: str) -> None:
    """Serve until stdin ends."""
    prepare, program = KINDS[kind]
    prepare()
    gc.collect()
    gc.freeze()
    # Handlers of clients are nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                _handle_client(client, program)
            client.close()


def _handle_client(client: socket.socket, program: Callable[[], int]) -> NoReturn:
    message, files, _, _ = socket.recv_fds(client, _LONGEST_MESSAGE, 3)
    request = json.loads(message)
    child = os.fork()
    if child == 0:
        client.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [sys.argv[0], *request["arguments"]]
        sys.exit(program())
    for file in files:
        os.close(file)
    handle = os.pidfd_open(child)
    ready, _, _ = select.select([client.fileno(), handle], [], [])
    if handle not in ready:
        os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    try:
        client.send(str(os.waitstatus_to_exitcode(status)).encode())
    except BrokenPipeError:
        pass
    os._exit(0)


def run(path: str, arguments: list[str]) -> int:
    """Run one program, and return its exit status."""
    request = {"directory": str(Path.cwd()), "environment": dict(os.environ), "arguments": arguments}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        return int(server.recv(16))


if __name__ == "__main__":
    # This directory is none of the program's.
    del sys.path[0]
    if sys.argv[1] == "run":
        sys.exit(run(sys.argv[2], sys.argv[3:]))
    serve(*sys.argv[2:])
