"""Limit the memory of a process, and give back to the system what it no longer uses."""

import contextlib
import ctypes
import resource
from pathlib import Path
from typing import Final

# mallopt(3): parameters of glibc's allocator.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9

MMAP_FROM: Final = 1 << 18
"""Blocks of at least this size are mapped on their own, so that freeing one gives it back at once."""


def _libc() -> ctypes.CDLL | None:
    """glibc, or None on a system that has another C library."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def return_freed_blocks() -> None:
    """Set glibc's allocator so that freed memory goes back to the system instead of staying in its arenas.

    Setting the threshold also turns off its growth: by default it rises to the largest block that was ever freed, and
    after one body of 30 MB all later bodies would come from the heap, which shrinks only from its end.
    """
    if (libc := _libc()) is not None:
        libc.mallopt(_M_ARENA_MAX, 2)
        libc.mallopt(_M_MMAP_THRESHOLD, MMAP_FROM)
        libc.mallopt(_M_TRIM_THRESHOLD, MMAP_FROM)


def trim() -> None:
    """Give unused pages of the heap back to the system."""
    if (libc := _libc()) is not None:
        libc.malloc_trim(0)


def limit_data(size: int) -> None:
    """Have every allocation beyond `size` bytes of private memory fail: Python then raises MemoryError."""
    with contextlib.suppress(OSError, ValueError):  # a lower hard limit is in force already
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it has ended (Linux)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def prefer_for_oom_kill() -> None:
    """Where the system runs out of memory, have it end this process before the store server or Postgres."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def peak() -> int:
    """The most memory, in bytes, that this process has had resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
