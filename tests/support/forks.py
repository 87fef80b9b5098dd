"""Start Playhead's own processes as forks of one that has imported them: to import them again takes up to a second each.

While `Forks.in_use()` is entered, `subprocess` and `asyncio` start Playhead's programs so, in this process and in the programs.

What is started is a process as real as any: a child of the process that starts it, with its own number, session, signals and
exit status; it may be killed, waited for and looked at as usual. What it starts of Playhead's is a fork as well. Only the start
of the interpreter and the imports are left out. Each program is started in earnest too: where a test is marked
`own_interpreter`, where anything unusual is asked for (another user, another Python), and behind any other program, such
as a shell that does not have `shells.py`'s programs first on its PATH.

xdist's workers are forks as well, of a process that has collected the tests: `forked_workers`.

Linux only, and a kernel that lets a process change its command line; elsewhere everything is started in earnest. Nothing of this checkout is imported before `serve` is called.
"""

import atexit
import ctypes
import fcntl
import gc
import io
import json
import os
import platform
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = str(Path(sys.executable).with_name("playhead"))
STARTING_OTHERS: Final = "proxy.trials.process"
"""A module that starts Playhead's programs in turn."""

STORE_SERVER: Final = "proxy.processes.store_server"
FORKED_HELPERS: Final = "TEST_FORKS_HELPERS"
"""A variable of store servers that start their helpers as forks. Those of others are started in earnest: their memory is measured."""

DEMO_PROGRAMS: Final = "TEST_DEMO_PROGRAMS"
"""A variable with the directory (`shells.py`) of the `playhead` and `python` that `playhead demo` runs."""

MODULES: Final = (
    "proxy.worker.process",
    STORE_SERVER,
    "proxy.processes.store_helper",
    "store.server",
    "proxy.demo.servers",
    STARTING_OTHERS,
)
"""What is started with `python -m` or `python -P -m`."""

BARE: Final = "--bare"
"""A template that imports nothing: it starts at once, and what it forks imports what it needs."""

WORKER: Final = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""How execnet starts a worker of xdist."""

HARMLESS: Final = frozenset({"PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "TZ", "LD_PRELOAD", "MALLOC_ARENA_MAX"})
STARTING: Final = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_", "TZ")
"""The beginnings of names of variables that an interpreter reads when it starts. Where they differ, one is started."""

CLONE: Final = {"x86_64": 56, "aarch64": 220}
CLONE_PARENT: Final = 0x8000
PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
PR_SET_MM: Final = 35
PR_SET_MM_MAP: Final = 14
PR_SET_MM_MAP_SIZE: Final = 15
M_ARENA_MAX: Final = -8
LONGEST_COMMAND: Final = 1 << 14
LONGEST_MESSAGE: Final = 1 << 17
MOST_FILES: Final = 32

_start_in_earnest: Final[Callable[..., int]] = vars(subprocess)["_fork_exec"]
_may_spawn: Final[bool] = vars(subprocess)["_USE_POSIX_SPAWN"]


class Template:
    """The process that forks, as its parent sees it."""

    def __init__(
        self, connection: socket.socket, pid: int = 0, *, is_ours: Callable[[Sequence[str], str], bool] | None = None
    ) -> None:
        self.pid = pid
        self._connection = connection
        self._is_ours = is_ours or _is_program
        self._lock = threading.Lock()

    def fork_exec(self, *arguments: Any) -> int:
        """Do what `_posixsubprocess.fork_exec` does, for Playhead's programs without starting an interpreter."""
        request = _request(self._is_ours, *arguments)
        return _start_in_earnest(*arguments) if request is None else self.fork(request)

    def fork(self, request: Mapping[str, Any]) -> int:
        """Start what was asked for, and return its number."""
        here = os.open(".", os.O_RDONLY)
        try:
            return self._ask(request, [here, *request["files"].values()])
        finally:
            os.close(here)

    def start_fork_server(self, listener: socket.socket) -> int:
        """Start a process that forks for the programs of shells, which connect to this socket (`shells.py`)."""
        return self._ask({"fork_server": True}, [listener.fileno()])

    def _ask(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        # Whoever starts processes in several threads has one started after the other.
        with self._lock:
            socket.send_fds(self._connection, [_encode(request)], list(files))
            answer = self._connection.recv(16)
        if not answer:
            raise OSError("the process that forks Playhead's programs has ended; its error is on stderr")
        return int(answer)


def _encode(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode()


def _request(
    is_ours: Callable[[Sequence[str], str], bool],
    args: Sequence[bytes | str],
    executables: Sequence[bytes],
    close_fds: bool,
    fds_to_keep: Sequence[int],
    cwd: bytes | str | None,
    env_list: Sequence[bytes] | None,
    p2cread: int,
    p2cwrite: int,
    c2pread: int,
    c2pwrite: int,
    errread: int,
    errwrite: int,
    errpipe_read: int,
    errpipe_write: int,
    restore_signals: bool,
    start_new_session: bool,
    process_group: int,
    gid: int | None,
    gids: Sequence[int] | None,
    uid: int | None,
    umask: int,
    preexec_fn: Callable[[], object] | None,
    *_: object,
) -> dict[str, Any] | None:
    """What the template has to know; None where a process is to be started in earnest."""
    words = [os.fsdecode(word) for word in args]
    if not is_ours(words, os.fsdecode(executables[0])):
        return None
    if preexec_fn or not close_fds or not restore_signals or (gid, gids, uid) != (None, None, None):
        return None
    if sum(map(len, words)) + len(words) >= LONGEST_COMMAND or (cwd is not None and not os.path.isdir(cwd)):
        return None
    environment = dict(os.environ) if env_list is None else _parse_environment(env_list)
    if _starting_variables(environment) != _own_starting_variables or _identity() != _own_identity:
        return None
    files = {number: number for number in fds_to_keep if number != errpipe_write}
    for number, file in enumerate((p2cread, c2pwrite, errwrite)):
        files[number] = number if file == -1 else file
    if len(files) >= MOST_FILES or not all(map(_is_open, files.values())):
        return None
    request = {
        "words": words,
        "files": files,
        "directory": None if cwd is None else os.fsdecode(cwd),
        "environment": environment,
        "session": bool(start_new_session),
        "group": process_group,
        "umask": _umask() if umask < 0 else umask,
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    return request if len(_encode(request)) <= LONGEST_MESSAGE else None


def _parse_environment(lines: Sequence[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(line).partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def _is_program(words: Sequence[str], executable: str) -> bool:
    if executable == SCRIPT:
        return True
    return executable == sys.executable and _module(words) in MODULES


def _module(words: Sequence[str]) -> str | None:
    """The module of `python -m` and `python -P -m`."""
    options, module = words[1:-1], words[-1]
    return module if options in (["-m"], ["-P", "-m"]) else None


def _is_worker(words: Sequence[str], executable: str) -> bool:
    return executable == sys.executable and words[1:] == WORKER


def _starting_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(STARTING) and name not in HARMLESS}


def _identity() -> tuple[object, ...]:
    return os.getresuid(), os.getresgid()


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def _umask() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def _note_starting_variables() -> None:
    """Note with which variables a template is started, also if they were set after this process had started."""
    global _own_environment, _own_starting_variables
    # It is asked for before each test, and to look at each variable takes a third of the time of a small one.
    if (environment := vars(os.environ)["_data"]) != _own_environment:
        _own_environment = dict(environment)
        _own_starting_variables = _starting_variables(os.environ)


_own_environment: dict[bytes, bytes] = {}
_own_starting_variables = _starting_variables(os.environ)
"""Those with which templates are started."""

_own_identity = _identity()


class Forks:
    """Starts Playhead's programs as forks while it is in use, by a template that is started when it is first needed."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._template: Template | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Start them so inside of the block."""
        if not can_fork():
            yield
            return
        _note_starting_variables()
        replace_fork_exec(self._fork_exec)
        try:
            yield
        finally:
            replace_fork_exec(_start_in_earnest)

    def close(self) -> None:
        """End the template."""
        self._opened.close()

    def start_fork_server(self, listener: socket.socket) -> int | None:
        """Have a process fork for shells; return its number, or None where everything is started in earnest."""
        return self._start_template().start_fork_server(listener) if can_fork() else None

    def _fork_exec(self, *arguments: Any) -> int:
        if self._template is None and _request(_is_program, *arguments) is None:
            return _start_in_earnest(*arguments)
        return self._start_template().fork_exec(*arguments)

    def _start_template(self) -> Template:
        """The template, which is started when it is first needed."""
        if self._template is None:
            self._template = self._opened.enter_context(started_template())
        return self._template


@cache
def can_fork() -> bool:
    """Whether programs can be started so here."""
    return sys.platform == "linux" and platform.machine() in CLONE and can_set_command_line()


def replace_fork_exec(function: Callable[..., int]) -> None:
    """Have all of `subprocess` and `asyncio` start processes by this function."""
    vars(subprocess)["_fork_exec"] = function
    # It starts most programs in another way, if it may.
    vars(subprocess)["_USE_POSIX_SPAWN"] = _may_spawn and function is _start_in_earnest


@contextmanager
def forked_workers(directory: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Start xdist's workers inside of the block as forks of a process that has collected what pytest finds with these arguments.

    To import the tests takes seconds, which each worker would take again; to collect them once they are imported, a fourth of
    that. If a test cannot be collected, the workers are started in earnest, and say so.
    """
    if not can_fork():
        yield
        return
    with started_template(["--collect", str(directory), *arguments], _is_worker) as template:

        def start_worker(*request: Any) -> int:
            try:
                return template.fork_exec(*request)
            except OSError:
                return _start_in_earnest(*request)

        replace_fork_exec(start_worker)
        try:
            yield
        finally:
            replace_fork_exec(_start_in_earnest)


@contextmanager
def started_template(
    arguments: Sequence[str] = (), is_ours: Callable[[Sequence[str], str], bool] = _is_program
) -> Iterator[Template]:
    """A template of this process."""
    _note_starting_variables()
    ours, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, others:
        line = [sys.executable, __file__, str(others.fileno())]
        process = subprocess.Popen(
            [*line, " " * LONGEST_COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[others.fileno()],
            cwd="/",
            start_new_session=is_ours is _is_program,  # Ctrl-C is for workers as well
        )
        others.close()
        try:
            yield Template(ours, process.pid, is_ours=is_ours)
        finally:
            ours.close()
            process.wait()


# In the process that forks


def serve(connection: socket.socket) -> Callable[[], object]:
    """Fork for each request until the parent has ended. Returns in each fork, with what it has to run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(connection, LONGEST_MESSAGE, MOST_FILES + 1)
        if not message:
            os._exit(0)
        pid = fork_beside()
        if pid == 0:
            connection.close()
            request = json.loads(message)
            if "fork_server" in request:
                serve_shells = runpy.run_path(str(Path(__file__).with_name("shells.py")))["serve_shells"]
                return cast(Callable[[], object], serve_shells(socket.socket(fileno=files[0]), prepare_shell_program))
            return prepare_program(request, files)
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())


def fork_beside() -> int:
    """Fork as `os.fork` does, but the new process is a child of this one's parent."""
    python = ctypes.pythonapi
    libc = ctypes.PyDLL(None)  # a call of which keeps the interpreter's lock
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("clone failed")
    return pid


def prepare_program(request: Mapping[str, Any], files: Sequence[int]) -> Callable[[], object]:
    """Make this fork what `exec` would have made it, and return its program."""
    words: list[str] = request["words"]
    module = _module(words)
    is_worker = words[1:] == WORKER
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    copy_limits()
    os.umask(request["umask"])
    connection = None
    is_starting_others = module in (None, STARTING_OTHERS)
    is_starting_others |= module == STORE_SERVER and FORKED_HELPERS in request["environment"]
    if is_starting_others and not is_worker:
        # It starts others, which must be its children, so it has a template of its own.
        connection, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            connection.close()
            for file in files:
                os.close(file)
            return serve(others)
        others.close()
    os.fchdir(files[0])
    if request["directory"] is not None:
        os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    if arenas := request["environment"].get("MALLOC_ARENA_MAX"):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, int(arenas))
    place_files(files[1:], list(map(int, request["files"])), connection)
    replace_fork_exec(_start_in_earnest if connection is None else Template(connection).fork_exec)
    open_standard_streams()
    set_command_line([sys.executable, *words] if module is None and not is_worker else words)
    set_signals(request["ignored"], request["blocked"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    if module is not None:
        sys.argv = [module]
        sys.modules.pop(module, None)
        if "PYTHONSAFEPATH" not in os.environ and "-P" not in words:
            sys.path.insert(0, str(Path.cwd()))
        return lambda: vars(runpy)["_run_module_as_main"](module)
    if is_worker:
        sys.argv = ["-c"]
        sys.path.insert(0, "")
        return lambda: exec(WORKER[-1], vars(sys.modules["__main__"]))
    if programs := request["environment"].get(DEMO_PROGRAMS):
        import_module("proxy.demo.service").Shell.__init__.__kwdefaults__["programs"] = Path(programs)
    sys.argv = [SCRIPT, *words[1:]]
    sys.path.insert(0, str(Path(SCRIPT).parent))
    return lambda: runpy.run_path(SCRIPT, run_name="__main__")


def prepare_shell_program(request: dict[str, Any], files: Sequence[int]) -> Callable[[], object]:
    """The same for what a shell has started, whose environment is its own: what the program starts in turn has the same one."""
    global _own_environment, _own_starting_variables
    _own_environment = {}
    _own_starting_variables = _starting_variables(request["environment"])
    request["words"][0] = SCRIPT
    return prepare_program(request, files)


def copy_limits() -> None:
    """Take over the parent's limits, which may have changed since its template was started."""
    for name in filter(lambda name: name.startswith("RLIMIT_"), dir(resource)):
        number = getattr(resource, name)
        with suppress(OSError, ValueError):
            resource.setrlimit(number, resource.prlimit(os.getppid(), number))


def place_files(files: Sequence[int], numbers: Sequence[int], connection: socket.socket | None) -> None:
    """Give open files their numbers, and close all others but for the connection, which is put out of the way."""
    above = max(256, *numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    away = -1
    if connection is not None:
        away = fcntl.fcntl(connection.detach(), fcntl.F_DUPFD_CLOEXEC, above)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in moved and number != away:
            with suppress(OSError):
                os.close(number)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    if connection is not None:
        connection.__init__(fileno=away)  # type: ignore[misc]


def open_standard_streams() -> None:
    """Open the streams on what they are now, as the interpreter does when it starts."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        before = getattr(sys, f"__{name}__")
        is_unbuffered = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
        raw: Any = open(number, f"{mode}b", 0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115 - it stays open
        stream = io.TextIOWrapper(
            raw,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n" if mode == "w" else None,
            line_buffering=name == "stderr" or raw.isatty(),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def set_command_line(words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Show these words in /proc, where tests and Playhead itself look for processes; and these variables, if any are given."""
    global _shown_environment
    libc = ctypes.CDLL(None, use_errno=True)
    # proc(5) counts from 1, and two fields stand before the rest.
    fields = [0, 0, 0, *map(_number, Path("/proc/self/stat").read_text().rpartition(")")[2].split())]
    start, end = fields[48:50]
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, line, len(line))
    libc.sbrk.restype = ctypes.c_void_p
    places = [fields[26], fields[27], fields[45], fields[46], fields[47], libc.sbrk(0), fields[28]]
    places += [start, start + len(line), fields[50], fields[51]]
    if environment is not None:
        block = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environment.items())
        _shown_environment = ctypes.create_string_buffer(block)
        places[-2:] = ctypes.addressof(_shown_environment), ctypes.addressof(_shown_environment) + len(block)
    # struct prctl_mm_map: without new auxiliary values, and with the program as it is.
    layout = struct.pack("11QQIi", *places, 0, 0, -1)
    sizes = ctypes.c_ulong(PR_SET_MM_MAP), layout, ctypes.c_ulong(len(layout)), ctypes.c_ulong(0)
    if libc.prctl(PR_SET_MM, *sizes) != 0:
        raise OSError(ctypes.get_errno(), "cannot change the command line of a fork")
    libc.prctl(PR_SET_NAME, os.fsencode(Path(words[0]).name)[:15], 0, 0, 0)


_shown_environment: Any = None
"""The memory in which the kernel looks for them."""


def can_set_command_line() -> bool:
    """Whether the kernel lets a process change its command line: it may be built without, or run as a sandbox that refuses."""
    size = ctypes.c_uint()
    call = ctypes.CDLL(None).prctl
    return (
        int(
            call(
                PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP_SIZE), ctypes.byref(size), ctypes.c_ulong(0), ctypes.c_ulong(0)
            )
        )
        == 0
    )


def _number(field: str) -> int:
    return int(field) if field.lstrip("-").isdigit() else 0


def set_signals(ignored: Sequence[int], blocked: Sequence[int]) -> None:
    """Handle signals as a new interpreter does whose parent ignores and blocks these."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler: Any = signal.SIG_DFL
        if number in ignored or number in (signal.SIGPIPE, signal.SIGXFSZ):
            handler = signal.SIG_IGN
        elif number == signal.SIGINT:
            handler = signal.default_int_handler
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def main() -> Callable[[], object]:
    """Import, and serve."""
    # This directory is none of the programs'.
    del sys.path[0]
    gc.disable()
    if sys.argv[3:4] != [BARE]:
        imports = runpy.run_path(str(Path(__file__).with_name("fork_imports.py")))
        if sys.argv[3:4] == ["--collect"]:
            imports["import_tests"](sys.argv[4], sys.argv[5:])
            gc.collect()
        else:
            imports["import_programs"](MODULES)
    # To collect what imports have left takes a fifth of a second, and would free little.
    gc.freeze()
    gc.enable()
    return serve(socket.socket(fileno=int(sys.argv[1])))


def run_to_end(program: Callable[[], object]) -> None:
    """Run a program and end as the interpreter does, but without taking all its modules apart, which takes a tenth of a second.

    Of an exception the interpreter tells itself.
    """
    code: Any = None
    try:
        program()
    except SystemExit as exit_:
        if not isinstance(exit_.code, int | None):
            raise
        code = exit_.code
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            if not stream.closed:
                stream.flush()
    except OSError:
        code = code or 120
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    run_to_end(main())
