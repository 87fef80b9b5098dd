"""The process that forks proxy workers for commands, which would take ten times as long to start: `python -m proxy.worker.template`.

It is given a listening socket. A request comes with the files that a worker has instead of stdin, stdout and stderr, and with its
working directory and environment. It answers with the worker's number, and with its exit status when that has ended. It holds no
secret and opens nothing of the data directory, and it ends when nobody has asked for a while, when the directory is gone, or when
a file of its code has changed.
"""

import gc

if __name__ == "__main__":
    # What is imported lives to the end, in the workers, too.
    gc.disable()

import json
import logging
import os
import secrets
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import calls.profiles
from calls.keys.key import make_key
from calls.model import Body, Request
from calls.redaction.redactor import Redactor
from calls.route import load_claimants
from proxy.capture.process import count_as_own
from proxy.lane.tls import rehearse_handshake, server_context
from proxy.processes.forked_process import peer_of
from proxy.processes.process_context import describe_context
from proxy.trust.ca import merge_roots
from proxy.trust.leaves import self_signed_leaf
from proxy.worker.process import NEEDED_BY_FIRST_REQUESTS, run_worker
from store.active_profiles import load_profiles

FILES: Final = 3
"""Files that come with a request: the worker's stdin and stdout in one, its stderr, its working directory."""

LONGEST_REQUEST: Final = 4 << 20
REQUEST_TIMEOUT: Final = 5.0

LOOK_INTERVAL: Final = 2.0
"""Seconds between two looks at whether the data directory is still there."""

QUIET: Final = 0.5
"""Seconds without a request after which the modules are imported that not every worker needs."""

NEEDED_BY_ALL: Final = ("proxy.lane.lane", *NEEDED_BY_FIRST_REQUESTS, "proxy.effects.channel", "uvloop")
NEEDED_BY_REPLAYS: Final = (
    "proxy.worker.replay_reports",
    "proxy.worker.replay_setup",
    "proxy.worker.stored_recordings",
)

_BODY: Final = b'{"model":"gpt-5","messages":[{"role":"user","content":"What is the capital of France?"}]}'
SAMPLE: Final = Request(
    method="POST",
    url="https://api.openai.com/v1/chat/completions",
    headers=(("Content-Type", "application/json"),),
    body=Body(data=_BODY, size=len(_BODY)),
)
"""A request such as workers get."""


type CodeState = tuple[int, int, int] | None
"""When a file was changed, its size and its number; None: it cannot be read."""


@dataclass(kw_only=True)
class Template:
    """The forking process: what it listens on, and the workers that run."""

    listener: socket.socket
    path: Path
    inode: int
    idle_timeout: float
    workers: dict[int, tuple[int, socket.socket]] = field(default_factory=dict)
    """By the descriptor that tells of a worker's end: its number, and the connection of the command that wants to know."""

    def __post_init__(self) -> None:
        self.context = describe_context()
        _import_all(NEEDED_BY_ALL)
        load_claimants()
        # What it compiles is used by every redactor of this process, whatever its key is.
        self._redactor = Redactor(key=secrets.token_bytes(32), profiles=load_profiles())
        for compile_next in self._redactor.preparations():
            compile_next()
        merge_roots(())
        self.code = _read_code_state()
        self.used_at = time.monotonic()

    def serve(self) -> bool:
        """Fork workers until nobody has needed one for a while. Return whether this process is a worker now."""
        has_all = False
        while self.workers or time.monotonic() < self.used_at + self.idle_timeout:
            poll = select.poll()
            for handle in (self.listener.fileno(), *self.workers):
                poll.register(handle, select.POLLIN)
            ready = [handle for handle, _ in poll.poll((LOOK_INTERVAL if has_all else QUIET) * 1000)]
            if not ready and not has_all:
                has_all = True
                self.prepare_more()
            for handle in ready:
                self.used_at = time.monotonic()
                if handle in self.workers:
                    self.report_end(handle)
                elif self.answer():
                    return True
            if not self.workers and not self.is_named():
                break
        return False

    def prepare_more(self) -> None:
        """Import and compile what only some workers need."""
        _import_all(NEEDED_BY_REPLAYS)
        self._redactor.prepare()
        make_key(SAMPLE, load_profiles())
        rehearse_handshake(server_context(self_signed_leaf("localhost"), alpn="http/1.1"))
        self.code = _read_code_state()

    def is_named(self) -> bool:
        """Whether commands find this process: its socket's name is there, and no other template has taken it."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def withdraw(self) -> None:
        """Let no more commands find this process."""
        if self.is_named():
            self.path.unlink(missing_ok=True)

    def report_end(self, handle: int) -> None:
        """Tell the command of a worker how that has ended."""
        pid, connection = self.workers.pop(handle)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(handle)
        _say(connection, {"ended": status})
        connection.close()

    def answer(self) -> bool:
        """Fork a worker for whoever has connected, if it is of this user and like the process that started this one.

        Return whether this process is that worker.
        """
        connection, _ = self.listener.accept()
        connection.settimeout(REQUEST_TIMEOUT)
        client, user = peer_of(connection)
        files: list[int] = []
        try:
            request = _read_request(connection, files) if user == os.geteuid() else {}
            if not _is_unchanged(self.code):
                # The next command starts one with the new code.
                self.withdraw()
            elif request.get("context") == self.context and len(files) == FILES:
                gc.freeze()
                if pid := os.fork():
                    self.workers[os.pidfd_open(pid)] = pid, connection
                    _say(connection, {"pid": pid})
                    return False
                self.become_worker(files)
                os.environ.clear()
                os.environ.update(request["environment"], PYTHONSAFEPATH="1")
                count_as_own(client)
                connection.close()
                return True
        except (OSError, ValueError):
            pass  # it has gone, or is not one of ours
        finally:
            for handle in files:
                os.close(handle)
        connection.close()
        return False

    def become_worker(self, files: list[int]) -> None:
        """Take a worker's files in place of the template's."""
        os.setsid()
        for source, target in ((files[0], 0), (files[0], 1), (files[1], 2)):
            os.dup2(source, target)
        os.fchdir(files[2])
        self.listener.close()
        for handle, (_, connection) in self.workers.items():
            os.close(handle)
            connection.close()


def _read_request(connection: socket.socket, files: list[int]) -> dict[str, Any]:
    """Read a request, up to the end of its line. Raises ValueError and OSError."""
    data, passed, _, _ = socket.recv_fds(connection, 1 << 16, FILES)
    files += passed
    while data and not data.endswith(b"\n") and len(data) < LONGEST_REQUEST:
        piece = connection.recv(1 << 16)
        if not piece:
            break
        data += piece
    request = json.loads(data)
    return request if isinstance(request, dict) else {}


def _say(connection: socket.socket, answer: dict[str, int]) -> None:
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # the command was killed, and the worker ends with it


def _import_all(names: tuple[str, ...]) -> None:
    for name in names:
        if find_spec(name) is not None:
            import_module(name)


def _read_code_state() -> dict[str, CodeState]:
    """Return the state of each file of the imported code, and of the profiles."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    profiles = map(str, Path(calls.profiles.__path__[0]).iterdir())
    return {file: _read_state(file) for file in (*files, *profiles) if file}


def _read_state(file: str) -> CodeState:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _is_unchanged(code: dict[str, CodeState]) -> bool:
    return all(_read_state(file) == state for file, state in code.items())


def main(arguments: list[str]) -> int:
    """Serve on a listening socket that was passed to this process."""
    handle, path, inode, log, idle_timeout = arguments
    with socket.socket(fileno=int(handle)) as endpoint:
        template = Template(listener=endpoint, path=Path(path), inode=int(inode), idle_timeout=int(idle_timeout))
        if template.serve():
            # It enables the collector when it is ready.
            status = run_worker()
            sys.stdout.flush()
            logging.shutdown()
            # Without what an interpreter does at its end: another process began it.
            os._exit(status)
        template.withdraw()
    if os.path.exists(log) and not os.path.getsize(log):
        os.unlink(log)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
