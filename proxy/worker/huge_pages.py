"""Move the worker's memory to huge pages, so that a call after a pause finds its memory sooner.

Between two calls other processes use the processor, and a call then finds hardly any translation of an address cached. In a
virtual machine each missing one costs up to 24 reads of memory, and a call touches hundreds of pages. With pages of 2 MiB there
are few to find: a call's steps in Python take a fifth less.

The kernel moves a range at once on request (madvise(2), MADV_COLLAPSE, Linux 6.1). Where it cannot, nothing changes.
"""

import asyncio
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

HUGE: Final = 2 << 20
"""Bytes of a huge page (x86-64, and arm64 with pages of 4 KiB)."""

START_AFTER: Final = 10.0
"""Seconds after which a worker has loaded what it needs. Commands that are over sooner save the work."""

BETWEEN: Final = 0.02
"""Seconds between two ranges. Each takes a millisecond, in which the process can map nothing else."""

_PAGE: Final = 4 << 10
_IN_USE: Final = 384
"""Pages of a range, of 512, that must be in use. Stacks of threads are hardly used, and would grow to 2 MiB."""

_COLLAPSE: Final = 25
_PRESENT: Final = 1 << 63
_SELF: Final = Path("/proc/self")
_ENABLED: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


async def use_huge_pages() -> None:
    """Move what the process has in memory after its start, one range after the other."""
    await asyncio.sleep(START_AFTER)
    for start in await asyncio.to_thread(find_movable):
        await asyncio.to_thread(move, start)
        await asyncio.sleep(BETWEEN)


def find_movable() -> list[int]:
    """Return the addresses of ranges of 2 MiB that may be moved and are in use; none where the system does not support it."""
    try:
        if sys.platform != "linux" or "[never]" in _ENABLED.read_text():
            return []
        return list(_ranges_in_use(anonymous_ranges((_SELF / "maps").read_text().splitlines())))
    except OSError:
        return []  # no huge pages, or no /proc


def anonymous_ranges(maps: Iterable[str]) -> Iterator[int]:
    """Return the addresses of the aligned ranges of 2 MiB in private, writable memory without a file (proc_pid_maps(5))."""
    for line in maps:
        addresses, permissions, _, _, inode, *name = line.split()
        if permissions != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, stop = (int(address, 16) for address in addresses.split("-"))
        yield from range(-(-start // HUGE) * HUGE, stop - HUGE + 1, HUGE)


def _ranges_in_use(ranges: Iterable[int]) -> Iterator[int]:
    with (_SELF / "pagemap").open("rb", buffering=0) as file:
        for start in ranges:
            file.seek(start // _PAGE * 8)
            entries = array("Q", file.read(HUGE // _PAGE * 8))
            if sum(entry >= _PRESENT for entry in entries) >= _IN_USE:
                yield start


def move(start: int) -> bool:
    """Move a range to a huge page. Return whether it is there."""
    import ctypes  # a worker that starts would wait for it

    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return False
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    # It fails where the kernel is older, or no huge page is free.
    return bool(madvise(start, HUGE, _COLLAPSE) == 0)
