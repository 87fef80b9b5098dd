"""A worker moves memory that is in use to huge pages, and nothing else."""

import mmap
from pathlib import Path

import pytest

from proxy.worker import huge_pages
from proxy.worker.huge_pages import HUGE, anonymous_ranges, find_movable, move

MAPS = """\
555555000000-555555401000 rw-p 00000000 00:00 0                          [heap]
7f0000001000-7f0000600000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-s 00000000 00:05 77                         /dev/zero (deleted)
7f0002000000-7f0002400000 rw-p 00000000 fe:00 12                         /usr/lib/libpython3.13.so.1.0
7f0003000000-7f0003400000 r-xp 00000000 00:00 0
7f0004000000-7f0004400000 rw-p 00000000 00:00 0                          [stack]
7f0005000000-7f00051ff000 rw-p 00000000 00:00 0
"""


def test_only_whole_ranges_of_private_memory_are_moved() -> None:
    heap, other = 0x555555000000, 0x7F0000000000
    assert list(anonymous_ranges(MAPS.splitlines())) == [heap, heap + HUGE, other + HUGE, other + 2 * HUGE]


def test_nothing_is_moved_where_huge_pages_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = tmp_path / "enabled"
    monkeypatch.setattr(huge_pages, "_ENABLED", enabled)
    assert find_movable() == []
    enabled.write_text("always madvise [never]\n")
    assert find_movable() == []


def test_memory_in_use_is_found_and_keeps_its_content() -> None:
    if not huge_pages._ENABLED.exists() or "[never]" in huge_pages._ENABLED.read_text():
        pytest.skip("this system has no transparent huge pages")
    with mmap.mmap(-1, 4 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        before = set(find_movable())
        content = bytes(range(1, 256)) * (3 * HUGE // 255)
        memory[: len(content)] = content
        found = set(find_movable()) - before
        assert len(found) >= 2
        for start in found:
            move(start)
        assert memory[: len(content)] == content
        assert not any(memory[len(content) :])


def test_a_range_that_cannot_be_moved_stays() -> None:
    assert not move(0)
