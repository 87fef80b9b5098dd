"""Compressed files of other programs are decompressed step by step, within limits."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from store.foreign.contents import NotReadable
from store.foreign.read import FREE, open_source

LINE = b'{"hash": "%d", "args_repr": "()", "kwargs_repr": "{}", "response_json": {"n": %d}}\n'


def test_a_bomb_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "bomb.jsonl.gz"
    file.write_bytes(gzip.compress(b" " * (4 * FREE)))
    tracemalloc.start()
    with pytest.raises(NotReadable, match="more than 100 times its size"):
        open_source(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("count", [1, 5000])
def test_a_small_file_may_repeat_itself(tmp_path: Path, count: int) -> None:
    file = tmp_path / "calls.jsonl.gz"
    file.write_bytes(gzip.compress(b"".join(LINE % (n, n) for n in range(count))))
    source = open_source(file)
    assert source.form == "jsonl"
    assert len(list(source.items)) == count


def test_lines_may_end_as_on_windows_and_the_last_one_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_bytes((LINE % (1, 1)).replace(b"\n", b"\r\n") + (LINE % (2, 2)).rstrip())
    assert len(list(open_source(file).items)) == 2


def test_what_breaks_off_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl.gz"
    file.write_bytes(gzip.compress(LINE % (1, 1))[:-9])
    with pytest.raises(NotReadable, match="is incomplete"):
        open_source(file)
    file.write_bytes(gzip.compress(b""))
    with pytest.raises(NotReadable, match="it is empty"):
        open_source(file)
