"""Run a command with a clock that is moved, through Debian's libfaketime without its functions that wait.

libfaketime 0.9.10 moves the deadlines of some functions that wait for a clock which is not moved: `time.sleep` of Python 3.11 fails,
waits of Java and Node return at once, timers never end. A copy whose table of symbols does not have these functions leaves them to libc.

It also shares memory between the processes of a command, for which it opens a semaphore when a process first reads its clock. That is of
use only for clocks that count their readings, and ends a program whose own `malloc` reads the clock, such as one made with Bun 1.4: the
semaphore needs memory. In the copy, opening it fails, and then the library shares none.

When a process first reads its clock, the library looks up functions, of which libc does not have all: the error message needs memory, too. A
program whose `malloc` reads the clock, such as jemalloc's in redis, would wait for itself. The copy looks up only functions that libc has.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from glob import glob
from hashlib import sha256
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
        *("getpid", "getrandom", "getentropy", "ftime", "__ftime"),
    }
)
"""Functions of libfaketime that a command has from libc. `sem_timedwait` and `pthread_cond_timedwait` stay: they wait for moved times."""

REPLACED: Final = {
    # Null for the name of a semaphore, as when opening it fails: then the library shares nothing.
    "sem_open": "getenv",
    # Without a version: libc has no version GLIBC_2.2 of functions for timers, which the library asks for.
    "dlvsym": "dlsym",
}
"""Functions of libc that the library uses, and others that it uses as well, which it calls in their place."""

MISSING_NAME: Final = b"\0__ftime\0"
PRESENT_NAME: Final = b"\0asctime\0"
"""A name that it looks up and libc does not have, and one in its place: its end, `time`, is looked up as well. What it finds is
only used by the function `ftime`, which is left out."""

_ELF64: Final = b"\x7fELF\x02\x01"
_CONTENTS: Final = 1
_DYNAMIC_SYMBOLS: Final = 11
_SYMBOL_VERSIONS: Final = 0x6FFFFFFF
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


def moved_clock(seconds: int, environment: Mapping[str, str], copies: Path) -> MovedClock:
    """Return what runs a command whose clock is so many seconds ahead. Raises NoFaketime. `copies`: where changed libraries are kept."""
    if own := next((name for name in environment if name.startswith("FAKETIME")), None):
        raise NoFaketime(f"the variable {own} is set already")
    library = next((path for pattern in LIBRARIES for path in sorted(glob(pattern))), None)
    if library is None:
        raise NoFaketime("libfaketime is not installed: apt install faketime")
    target = os.path.realpath(library)
    try:
        copy = _changed_copy(Path(target), copies)
    except (OSError, ValueError, struct.error) as error:
        raise NoFaketime(f"{library} cannot be used: {error}") from error
    variables = {
        "LD_PRELOAD": os.pathsep.join(filter(None, (target, environment.get("LD_PRELOAD")))),
        # Whole seconds: which character divides fractions depends on the locale.
        "FAKETIME": f"{seconds:+d}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
    return MovedClock(variables=variables, binds=((str(copy), target),))


def _changed_copy(library: Path, copies: Path) -> Path:
    """Return a copy of the library that moves clocks and nothing else. Raises OSError or ValueError."""
    data = library.read_bytes()
    changes = repr((sorted(LEFT_OUT), REPLACED, MISSING_NAME, PRESENT_NAME)).encode()
    copies.mkdir(mode=0o755, exist_ok=True)
    copy = copies / f"libfaketime-{sha256(changes + data).hexdigest()[:16]}.so"
    if not copy.exists():
        part = copy.with_suffix(f".{os.getpid()}.{next(_counter)}")
        part.write_bytes(change_library(data))
        part.chmod(0o644)
        part.replace(copy)
    return copy


def change_library(data: bytes) -> bytes:
    """Return a library of 64 bits that has no functions which wait, shares no memory, and looks up no function that is missing."""
    if not data.startswith(_ELF64):
        raise ValueError("it is not a library of 64 bits, little endian")
    changed, symbols = bytearray(data), list(_symbols(data))
    if CLOCKS - {symbol.name for symbol in symbols if symbol.is_defined}:
        raise ValueError("it does not have the functions of libfaketime")
    for symbol in symbols:
        if symbol.is_defined and symbol.name in LEFT_OUT:
            # An undefined symbol: section 0, without a value.
            struct.pack_into("<HQ", changed, symbol.entry + 6, 0, 0)
    used = {symbol.name: symbol for symbol in symbols if not symbol.is_defined}
    for name, other in REPLACED.items():
        if (original := used.get(name)) is None:
            continue
        if (replacement := used.get(other)) is None:
            raise ValueError(f"it does not use {other}")
        changed[original.entry : original.entry + 4] = data[replacement.entry : replacement.entry + 4]
        changed[original.version : original.version + 2] = data[replacement.version : replacement.version + 2]
    for start, end in _constants(data):
        changed[start:end] = changed[start:end].replace(MISSING_NAME, PRESENT_NAME)
    return bytes(changed)


def _constants(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the sections with its own contents begin and end: not those with the names of symbols."""
    for _, kind, _, _, offset, size, *_ in _sections(data):
        if kind == _CONTENTS:
            yield offset, offset + size


class _Symbol(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_defined: bool
    """Whether the library has it itself."""

    entry: int
    version: int
    """Where its entry in the table of symbols is, and that in the table of their versions."""


def _symbols(data: bytes) -> Iterator[_Symbol]:
    """Yield the dynamic symbols. Raises ValueError if they have no versions."""
    headers = _sections(data)
    versions = next((offset for _, kind, _, _, offset, *_ in headers if kind == _SYMBOL_VERSIONS), None)
    if versions is None:
        raise ValueError("its symbols have no versions")
    for _, kind, _, _, offset, length, texts, *_ in headers:
        if kind == _DYNAMIC_SYMBOLS:
            for place, entry in enumerate(range(offset, offset + length, _SYMBOL.size)):
                text, _, _, section, _, _ = _SYMBOL.unpack_from(data, entry)
                start = headers[texts][4] + text
                name = data[start : data.index(0, start)].decode("ascii", "replace")
                yield _Symbol(name=name, is_defined=bool(section), entry=entry, version=versions + 2 * place)


def _sections(data: bytes) -> list[tuple[int, ...]]:
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, number = struct.unpack_from("<HH", data, 0x3A)
    return [_SECTION.unpack_from(data, sections + at * size) for at in range(number)]
