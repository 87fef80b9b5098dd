"""Run a command with a clock that is moved, through Debian's libfaketime without its functions that wait.

libfaketime 0.9.10 moves the deadlines of some functions that wait for a clock which is not moved: `time.sleep` of Python 3.11 fails,
waits of Java and Node return at once, timers never end. A copy whose table of symbols does not have these functions leaves them to libc.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from glob import glob
from hashlib import sha256
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

LIBRARIES: Final = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)

CLOCKS: Final = frozenset({"clock_gettime", "gettimeofday", "time"})
"""Functions without which a library is not libfaketime."""

LEFT_OUT: Final = frozenset(
    {
        *("clock_nanosleep", "nanosleep", "usleep", "sleep", "alarm"),
        *("poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait"),
        *("timer_settime", "timer_gettime", "timerfd_settime", "timerfd_gettime"),
        # The times of files stay, by which builds go.
        *("stat", "fstat", "lstat", "__xstat", "__xstat64", "__fxstat", "__fxstat64", "__lxstat", "__lxstat64"),
        *("__fxstatat", "__fxstatat64", "utime", "utimes", "futimens", "utimensat"),
        *("getpid", "getrandom", "getentropy"),
    }
)
"""Functions of libfaketime that a command has from libc. `sem_timedwait` and `pthread_cond_timedwait` stay: they wait for moved times."""

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where libc has it
NAME: Final = "playhead-clock-"

NEVER_WAITS: Final = 1 << 20
"""The value of the semaphore: a process that is killed while it has it makes no other wait."""

NO_TIME_YET: Final = struct.pack("<QQ", 0, 0) + struct.pack("<qq", 0, -1) * 4
"""What libfaketime writes into its shared memory first."""

_ELF64: Final = b"\x7fELF\x02\x01"
_DYNAMIC_SYMBOLS: Final = 11
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_counter = count()


class NoFaketime(Exception):
    """A command cannot have another clock. The message is why."""


class MovedClock(msgspec.Struct, frozen=True, kw_only=True):
    """What a captive command needs for its clock; nothing for the present one."""

    variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    binds: tuple[tuple[str, str], ...] = ()
    """Bind mounts as (copy, target)."""

    why_not: str = ""
    """Why the command has the present clock, if it should have another."""


@contextmanager
def moved_clock(seconds: int, environment: Mapping[str, str], copies: Path) -> Iterator[MovedClock]:
    """Prepare to run a command whose clock is so many seconds ahead. Raises NoFaketime. `copies`: where changed libraries are kept."""
    if own := next((name for name in environment if name.startswith("FAKETIME")), None):
        raise NoFaketime(f"the variable {own} is set already")
    library = next((path for pattern in LIBRARIES for path in sorted(glob(pattern))), None)
    if library is None:
        raise NoFaketime("libfaketime is not installed: apt install faketime")
    target = os.path.realpath(library)
    with ExitStack() as stack:
        try:
            copy = _copy_without_waits(Path(target), copies)
            shared = stack.enter_context(_shared_memory())
        except (OSError, ImportError, ValueError, struct.error) as error:
            raise NoFaketime(f"{library} cannot be used: {error}") from error
        variables = {
            "LD_PRELOAD": os.pathsep.join(filter(None, (target, environment.get("LD_PRELOAD")))),
            # Whole seconds: which character divides fractions depends on the locale.
            "FAKETIME": f"{seconds:+d}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "FAKETIME_SHARED": shared,
        }
        yield MovedClock(variables=variables, binds=((str(copy), target),))


def _copy_without_waits(library: Path, copies: Path) -> Path:
    """Return a copy of the library without the functions that are left to libc. Raises OSError or ValueError."""
    data = library.read_bytes()
    copies.mkdir(mode=0o755, exist_ok=True)
    copy = copies / f"libfaketime-{sha256(repr(sorted(LEFT_OUT)).encode() + data).hexdigest()[:16]}.so"
    if not copy.exists():
        part = copy.with_suffix(f".{os.getpid()}.{next(_counter)}")
        part.write_bytes(without_functions(data, LEFT_OUT))
        part.chmod(0o644)
        part.replace(copy)
    return copy


def without_functions(data: bytes, names: frozenset[str]) -> bytes:
    """Return a library of 64 bits whose table of symbols says that it uses these functions and does not have them."""
    if not data.startswith(_ELF64):
        raise ValueError("it is not a library of 64 bits, little endian")
    changed, found = bytearray(data), set()
    for place in _symbols(data):
        text, _, _, section, _, _ = _SYMBOL.unpack_from(data, place.entry)
        start = place.texts + text
        name = data[start : data.index(0, start)].decode("ascii", "replace")
        if section and name in CLOCKS:
            found.add(name)
        if section and name in names:
            # An undefined symbol: section 0, without a value.
            struct.pack_into("<HQ", changed, place.entry + 6, 0, 0)
    if found != CLOCKS:
        raise ValueError("it does not have the functions of libfaketime")
    return bytes(changed)


class _Symbol(msgspec.Struct, frozen=True):
    entry: int
    texts: int


def _symbols(data: bytes) -> Iterator[_Symbol]:
    """Yield where the entries of the table of dynamic symbols are, and where the texts are that they refer to."""
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, number = struct.unpack_from("<HH", data, 0x3A)
    headers = [_SECTION.unpack_from(data, sections + at * size) for at in range(number)]
    for _, kind, _, _, offset, length, texts, *_ in headers:
        if kind == _DYNAMIC_SYMBOLS:
            for entry in range(offset, offset + length, _SYMBOL.size):
                yield _Symbol(entry, headers[texts][4])


@contextmanager
def _shared_memory() -> Iterator[str]:
    """Provide the semaphore and the memory that the processes of a command share, which libfaketime would leave behind.

    Raises OSError, or ImportError of a Python without semaphores.
    """
    semaphores = import_module("_multiprocessing")
    _remove_abandoned()
    name = f"{NAME}{os.getpid()}-{next(_counter)}"
    memory = SHARED_MEMORY / f"{name}.memory"
    semaphores.SemLock(1, NEVER_WAITS, NEVER_WAITS * 2, f"/{name}", False)
    try:
        with os.fdopen(os.open(memory, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(NO_TIME_YET.ljust(4096, b"\0"))
        yield f"/{name} /{memory.name}"
    finally:
        memory.unlink(missing_ok=True)
        semaphores.sem_unlink(f"/{name}")


def _remove_abandoned() -> None:
    """Remove what commands left behind that were killed."""
    for path in (*SHARED_MEMORY.glob(f"{NAME}*"), *SHARED_MEMORY.glob(f"sem.{NAME}*")):
        pid = path.name.partition(NAME)[2].partition("-")[0]
        if pid.isdecimal() and path.lstat().st_uid == os.geteuid() and not os.path.exists(f"/proc/{pid}"):
            path.unlink(missing_ok=True)
