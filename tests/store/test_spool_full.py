"""On a full disk, stored records are deleted to make room for new ones, and nothing is taken for damage."""

import errno
import os
from pathlib import Path

import pytest

from store.spool import Position, Reader, Spool, SpoolFull, cursor
from store.spool.output import Output, WriteFailed
from store.spool.progress import Progress
from store.spool.segment import segment_numbers, segment_path
from tests.store.disks import FaultyDisk


class SmallDisk(FaultyDisk):
    """A disk that reports little free space."""

    def free_bytes(self, directory: Path) -> int:
        return self.room


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "worker"


def payloads(reader: Reader) -> list[bytes]:
    return [bytes(payload) for _, payload in reader.read(1 << 20)]


def test_half_of_a_small_disk_is_left_to_the_reader(directory: Path) -> None:
    with Spool(directory, disk=SmallDisk(room=10_000)) as spool:
        spool.append(b"x" * 4000)
        with pytest.raises(SpoolFull, match="of 5000 bytes"):
            spool.append(b"x" * 1000)


def test_a_full_spool_has_room_for_the_rest_of_what_it_let_begin(directory: Path) -> None:
    with Spool(directory, max_bytes=8000) as spool:
        spool.append(b"x" * 6980, starts_exchange=True)
        with pytest.raises(SpoolFull):
            spool.append(b"another", starts_exchange=True)
        for _ in range(9):
            spool.append(b"x" * 100)
        with pytest.raises(SpoolFull):
            spool.append(b"x" * 100)


def test_a_disk_that_stays_full_is_not_filled_with_names(directory: Path) -> None:
    directory.mkdir()
    disk = FaultyDisk(room=200)
    output = Output(directory, disk, Progress(directory), number=1, salt=7, now=lambda: 0)
    output.write([b"one"])
    for _ in range(20):
        with pytest.raises(WriteFailed):
            output.write([b"x" * 500])
        disk.room += 10
    assert segment_numbers(directory) == [1, 2]
    disk.room = 1 << 20
    output.write([b"two"])
    reader = Reader(directory)
    assert payloads(reader) == [b"one", b"two"]
    assert reader.take_damage() == []


def test_an_empty_segment_is_what_a_writer_left_and_no_damage(directory: Path) -> None:
    with Spool(directory) as spool:
        spool.append(b"one")
    segment_path(directory, 2).touch()
    reader = Reader(directory)
    assert payloads(reader) == [b"one"]
    assert reader.is_orphaned()
    with Spool(directory) as spool:
        spool.append(b"two")
    assert payloads(reader) == [b"two"]
    assert reader.take_damage() == []


def test_the_cursor_moves_where_there_is_no_room_for_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for record in (b"one", b"two", b"three"):
        with Spool(directory) as spool:
            spool.append(record)
    honest = cursor.store_cursor

    def store(place: Path, position: Position) -> None:
        if segment_path(place, 1).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(place, position)

    monkeypatch.setattr(cursor, "store_cursor", store)
    reader = Reader(directory)
    first, second, _ = reader.read(1 << 20)
    reader.commit(second[0])
    assert first[0].segment not in segment_numbers(directory)
    again = Reader(directory)
    assert payloads(again) == [b"three"]
    assert again.take_damage() == []
