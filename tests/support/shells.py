"""Programs of a shell as forks: `playhead`, and Python programs that import an SDK, which takes a second and a half each.

`tests/support/forks.py` sees only what Python starts. A shell, and a command in namespaces of its own, find two small programs
first on their PATH: `playhead` and `python`. Each connects to a process that has imported what its program needs, passes it its
words, environment, directory and streams, and has it fork: the fork enters the caller's namespaces. The small program passes on
signals, and ends as the fork does. The workers of a test run share the processes that have imported SDKs (`shared.py`).

What such a fork cannot be is started in earnest, by the same small program: `python -c` and `-m`, other variables that an
interpreter reads when it starts, other open files, another user, a system call filter. Linux and root only; elsewhere the PATH
leads to the real programs.
"""

import ctypes
import gc
import hashlib
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

NAMESPACES: Final = ("net", "mnt", "user")
LONGEST: Final = 1 << 17
MOST_FILES: Final = 16
SDKS: Final = (
    "openai",
    "openai.resources.chat.completions.completions",
    "httpx2",
    "httpcore2",
    "requests",
    "truststore",
)
"""What agents import that shells start, or their SDKs with the first call."""

CALLER: Final = r"""#!{python} -IS
import _signal, _socket, marshal, os, sys

REAL = {real!r}
NAMESPACES = {namespaces!r}


def start_in_earnest():
    os.execv(REAL, [REAL, *sys.argv[1:]])


def ask():
    if any(number > 2 and os.get_inheritable(number) for number in open_files()):
        return None
    with open("/proc/self/status") as status:
        if any(line.startswith("Seccomp:") and line.split()[1] != {seccomp!r} for line in status):
            return None
    request = {{
        "words": sys.argv,
        "environment": dict(os.environ),
        "umask": read_umask(),
        "ignored": [n for n in range(1, 32) if n not in (13, 25) and _signal.getsignal(n) == _signal.SIG_IGN],
    }}
    files = [os.open(".", os.O_RDONLY), 0, 1, 2, *(os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in NAMESPACES)]
    fork_server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    fork_server.connect({fork_server!r})
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    fork_server.sendmsg([marshal.dumps(request)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    answer = fork_server.recv(64)
    return (fork_server, int(answer)) if answer.isdigit() else None


def open_files():
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        yield int(name)


def read_umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


def main():
    try:
        started = ask()
    except OSError:
        started = None
    if started is None:
        start_in_earnest()
    fork_server, pid = started
    for number in (1, 2, 3, 10, 12, 15, 28):
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, frame: fork_server.send(str(number).encode()))
    for number in (0, 1):  # whoever reads or writes at the other end waits for the fork alone
        os.close(number)
    code = int(fork_server.recv(64) or b"-9")
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL) if -code not in (9, 19) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
"""


class ForkServerStarter(Protocol):
    """Starts a process that forks for programs of shells, which connect to a socket; `tests.support.forks.Forks`."""

    def start_fork_server(self, listener: socket.socket) -> int | None:
        """Return the id of that process; None if programs are started without forks."""


@contextmanager
def started_programs(forks: ForkServerStarter) -> Iterator[Path]:
    """Yield a directory with `playhead` and `python` for the beginning of a PATH."""
    with started_playhead(forks) as playhead:
        if playhead.parent != Path(sys.executable).parent:
            with _started_agents(playhead.parent, Path(sys.executable), SDKS):
                yield playhead.parent
            return
        yield playhead.parent


@contextmanager
def started_playhead(forks: ForkServerStarter) -> Iterator[Path]:
    """Yield a program that does the same as `playhead`, as a fork in the namespaces of its caller."""
    real = Path(sys.executable).with_name("playhead")
    if sys.platform != "linux" or os.geteuid() != 0:
        yield real
        return
    place = Path(tempfile.mkdtemp(prefix="playhead-programs-"))
    place.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        path = place / "playhead.sock"
        with _listening(path) as fork_server:
            pid = forks.start_fork_server(fork_server)
        if pid is None:
            yield real
            return
        stack.callback(os.waitpid, pid, 0)
        stack.callback(os.kill, pid, signal.SIGKILL)
        yield _write_caller(place, "playhead", real, path)


@contextmanager
def started_interpreter(interpreter: Path, modules: Sequence[str]) -> Iterator[Path]:
    """Yield a program that runs `interpreter FILE` with these modules already imported."""
    from tests.support.forks import can_fork  # this module is a script as well, beside which the tests are not found

    if not can_fork() or os.geteuid() != 0:
        yield interpreter
        return
    place = Path(tempfile.mkdtemp(prefix="playhead-programs-"))
    place.chmod(0o711)
    try:
        with _started_agents(place, interpreter, modules) as program:
            yield program
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(64)
        yield listener


@contextmanager
def _started_agents(place: Path, interpreter: Path, modules: Sequence[str]) -> Iterator[Path]:
    """A `python` in this place that has a process of this interpreter fork, which has imported the modules once for all workers."""
    from tests.support.shared import shared_process  # likewise

    digest = hashlib.sha256("\n".join((str(interpreter), *modules)).encode()).hexdigest()[:12]
    with ExitStack() as stack:
        try:
            process = shared_process(f"agents-{digest}", [str(interpreter), __file__, *modules])
            fork_server = stack.enter_context(process)
        except ChildProcessError:
            fork_server = place / "none.sock"  # everything is started in earnest
        yield _write_caller(place, "python", interpreter, fork_server)


def _write_caller(place: Path, name: str, real: Path, fork_server: Path) -> Path:
    text = CALLER.format(
        python=sys.executable,
        real=str(real),
        namespaces=NAMESPACES,
        seccomp=_seccomp(),
        fork_server=str(fork_server),
    )
    (place / name).write_text(text)
    (place / name).chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    return place / name


def _seccomp() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith("Seccomp:")), "")


# In the process that forks

type Prepare = Callable[[dict[str, Any], Sequence[int]], Callable[[], object]]


class ForkServer:
    """Forks for each caller, and tells it the exit status of the fork. `serve` returns in each fork, with the program
    to run.
    """

    def __init__(self, listener: socket.socket, prepare: Prepare, *, is_over: Callable[[], bool] | None = None) -> None:
        self._listener = listener
        self._prepare = prepare
        self._is_over = is_over
        self._callers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()

    def serve(self) -> Callable[[], object]:
        """Serve until the parent of this process has ended or, if several processes use it, until stdin is readable and
        none uses it.
        """
        if self._is_over is None:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        else:
            self._selector.register(0, selectors.EVENT_READ)
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for file in (self._listener, self._woken):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if program := self._serve_caller(self._listener.accept()[0]):
                        return program
                elif key.fileobj == self._woken:
                    self._reap()
                elif key.fileobj == 0:
                    if self._is_over is not None and self._is_over():
                        os._exit(0)
                else:
                    self._pass_on_signal(key.data)

    def _serve_caller(self, caller: socket.socket) -> Callable[[], object] | None:
        message, files, _, _ = socket.recv_fds(caller, LONGEST, MOST_FILES)
        request: dict[str, Any] = marshal.loads(message) if message else {}
        pid = os.fork() if request and _can_fork(request["words"], request["environment"]) else -1
        if pid == 0:
            return self._become_program(caller, request, files)
        for file in files:
            os.close(file)
        if pid < 0:
            with suppress(OSError):
                caller.send(b"in earnest")
            caller.close()
            return None
        self._callers[pid] = caller
        self._selector.register(caller, selectors.EVENT_READ, pid)
        with suppress(OSError):
            caller.send(str(pid).encode())
        return None

    def _become_program(self, caller: socket.socket, request: dict[str, Any], files: list[int]) -> Callable[[], object]:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for one in (self._listener, caller, *self._callers.values()):
            one.close()
        os.close(self._woken)
        os.close(self._wake)
        streams, namespaces = files[:4], files[4:]
        for file, name in zip(namespaces, NAMESPACES, strict=True):
            if os.fstat(file).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
                os.setns(file)
            os.close(file)
        shown: dict[str, Any] = {
            "directory": None,
            "session": False,
            "group": -1,
            "blocked": [],
            "files": dict.fromkeys(("0", "1", "2")),
        }
        adopt_search_path(request["environment"])
        return self._prepare(request | shown, streams)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (caller := self._callers.pop(pid, None)) is not None:
                with suppress(OSError):
                    caller.send(str(os.waitstatus_to_exitcode(status)).encode())
                self._selector.unregister(caller)
                caller.close()

    def _pass_on_signal(self, pid: int) -> None:
        caller = self._callers.get(pid)
        if caller is None:
            return
        try:
            number = caller.recv(64)
        except OSError:
            number = b""
        with suppress(ProcessLookupError):
            os.kill(pid, int(number or signal.SIGKILL))
        if not number:  # it was killed
            self._selector.unregister(caller)
            del self._callers[pid]
            caller.close()


def serve_shells(listener: socket.socket, prepare: Prepare) -> Callable[[], object]:
    """Serve in a process that has imported something; return in each fork, with its program."""
    return ForkServer(listener, prepare).serve()


HARMLESS: Final = frozenset(
    {"PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ", "LD_PRELOAD"}
)
"""Variables that can change after the start. OpenSSL reads its two when it creates a context, and `tzset` reads TZ."""

STARTING: Final = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_", "TZ")


def starting_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(STARTING) and name not in HARMLESS}


_own_starting_variables = starting_variables(os.environ)


def _can_fork(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    if starting_variables(environment) != _own_starting_variables:
        return False
    if any((Path(entry) / "sitecustomize.py").exists() for entry in search_path(environment)):
        return False  # it patches what an interpreter has not yet imported
    return Path(words[0]).name == "playhead" or (len(words) > 1 and words[1].endswith(".py"))


def search_path(environment: Mapping[str, str]) -> list[str]:
    return list(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))


def adopt_search_path(environment: Mapping[str, str]) -> None:
    """Set the module search path as an interpreter with this environment does."""
    own = search_path(os.environ)
    sys.path[:] = [*search_path(environment), *(entry for entry in sys.path if entry not in own)]


def prepare_agent(request: dict[str, Any], files: Sequence[int]) -> Callable[[], object]:
    """Make this fork equal to `python FILE`, and return its program."""
    forks = sys.modules["forks"]
    os.fchdir(files[0])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    forks.place_files(files[1:], [0, 1, 2], None)
    forks.open_standard_streams()
    # By the proxy in their environment Playhead tells agents from those that started them.
    forks.set_command_line(["python", *request["words"][1:]], request["environment"])
    forks.set_signals(request["ignored"], request["blocked"])
    file = request["words"][1]
    sys.argv = request["words"][1:]
    sys.path.insert(0, str(Path(file).resolve().parent))
    sys.modules["__main__"] = type(sys)("__main__")
    return lambda: runpy.run_path(file, run_name="__main__")


def main() -> Callable[[], object]:
    """Import the modules, and serve agents until nobody uses this process (`shared.py`)."""
    import_module("forks")  # beside this file
    *modules, path = sys.argv[1:]
    has_no_users = runpy.run_path(str(Path(__file__).with_name("shared.py")))["has_no_users"]
    del sys.path[0]
    os.chdir("/")
    # NumPy's OpenBLAS starts a thread for each core when it is imported.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    gc.disable()
    for name in modules:
        import_module(name)
    if tuple(modules) == SDKS:
        runpy.run_path(str(Path(__file__).with_name("warm_sdks.py")))["warm_sdks"]()
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit(f"{', '.join(modules)} start threads in {sys.executable}, which a fork would lack")
    gc.freeze()
    gc.enable()
    with _listening(Path(path)) as bound:
        listener = bound.dup()
    os.write(1, b"ready\n")
    os.dup2(2, 1)  # whoever started it reads no more
    return ForkServer(listener, prepare_agent, is_over=lambda: bool(has_no_users(path))).serve()


if __name__ == "__main__":
    program = main()
    sys.modules["forks"].run_to_end(program)
