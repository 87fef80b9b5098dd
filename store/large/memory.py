"""Limit the memory of a process, and return unused memory to the system."""

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

MIN_MMAP_SIZE: Final = 1 << 18
"""Bytes from which a block is mapped separately, so that freeing it returns it to the system at once."""


def _libc() -> ctypes.CDLL | None:
    """glibc, or None on a system with another C library."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def return_freed_blocks() -> None:
    """Configure glibc's allocator to return freed memory to the system instead of keeping it in its arenas.

    Setting the threshold also fixes it: by default it grows to the size of the largest block that was freed, and after one
    body of 30 MB all later bodies would be allocated from the heap, which shrinks only at its end.
    """
    if (libc := _libc()) is not None:
        libc.mallopt(_M_ARENA_MAX, 2)
        libc.mallopt(_M_MMAP_THRESHOLD, MIN_MMAP_SIZE)
        libc.mallopt(_M_TRIM_THRESHOLD, MIN_MMAP_SIZE)


def trim_heap() -> None:
    """Return unused pages of the heap to the system."""
    if (libc := _libc()) is not None:
        libc.malloc_trim(0)


def limit_data(size: int) -> None:
    """Make allocations beyond `size` bytes of private memory fail; Python then raises MemoryError."""
    with contextlib.suppress(OSError, ValueError):  # a lower hard limit is in force already
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent process ends (Linux)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def prefer_for_oom_kill() -> None:
    """If the system runs out of memory, have it end this process before the store server or Postgres."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def peak_memory() -> int:
    """The most resident memory, in bytes, that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
