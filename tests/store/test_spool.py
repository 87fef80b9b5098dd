"""Records that a worker appends are read in order and once, whichever process stops in between."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.spool import Position, Reader, Spool, SpoolBroken, SpoolFull, SpoolTaken, scheduled_work, writer
from store.spool.segment import OVERHEAD, encode_frames, frame_at, segment_numbers, whole_frames
from tests.store.disks import FaultyDisk

payloads = st.lists(st.binary(min_size=1, max_size=300), max_size=40)
in_one_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "worker"


@pytest.fixture
def anew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory below which each example creates its own spool."""
    return tmp_path_factory.mktemp("spools")


def everything(reader: Reader, limit: int = 1 << 20) -> list[bytes]:
    found = []
    while frames := reader.read(limit):
        assert [position for position, _ in frames] == sorted({position for position, _ in frames})
        found += [bytes(payload) for _, payload in frames]
    return found


def overfill(spool: Spool) -> None:
    while spool.append(b"x" * 1000) < 10_000:
        pass


def fill(directory: Path, records: list[bytes], **options: int) -> None:
    with Spool(directory, **options) as spool:  # type: ignore[arg-type]
        for record in records:
            spool.append(record)


@in_one_directory
@given(records=payloads, segment_bytes=st.sampled_from([1, 500, 4096, 1 << 20]), limit=st.integers(1, 2000))
def test_what_goes_in_comes_out(anew: Path, records: list[bytes], segment_bytes: int, limit: int) -> None:
    directory = anew / str(len(list(anew.iterdir())))
    fill(directory, records, segment_bytes=segment_bytes)

    reader = Reader(directory)

    assert everything(reader, limit) == records
    assert reader.take_damage() == []
    assert reader.is_orphaned()


@given(payloads, st.integers(0, 400), st.one_of(st.none(), st.integers(0, 255)), st.integers(0, 2**32 - 1))
def test_frames_are_read_to_the_first_that_is_none(
    payloads: list[bytes], place: int, changed: int | None, salt: int
) -> None:
    data = encode_frames(payloads, salt)
    data = data[:place] if changed is None else data[:place] + bytes([changed]) + data[place + 1 :]
    expected, at = [], 0
    while not isinstance(frame := frame_at(data, at, salt), str):
        start, at = frame
        expected.append((at, data[start:at]))
    found = whole_frames(data, salt, 100)
    assert found == expected
    assert all(isinstance(payload, memoryview) == (len(payload) > 100) for _, payload in found)


def test_one_writer_after_another_adds_to_the_same_spool(directory: Path) -> None:
    fill(directory, [b"one"])
    fill(directory, [b"two"])

    assert everything(Reader(directory)) == [b"one", b"two"]
    assert segment_numbers(directory) == [1, 2]


async def test_a_reader_follows_a_living_writer(directory: Path) -> None:
    with Spool(directory, segment_bytes=2000) as spool:
        reader = Reader(directory)
        for n in range(200):
            await spool.wait_until_durable(spool.append(b"record %d" % n))
            assert everything(reader) == [b"record %d" % n]
            assert not reader.is_orphaned()
        assert len(segment_numbers(directory)) >= 3
        assert reader.read() == []
        assert reader.take_damage() == []
    assert reader.is_orphaned()


async def test_records_are_numbered_from_one(directory: Path) -> None:
    with Spool(directory) as spool:
        assert [spool.append(b"x") for _ in range(3)] == [1, 2, 3]
        await spool.wait_until_durable(2)
        assert spool.written_count >= 2
        assert spool.appended_count == 3


async def test_nothing_waits_for_a_disk_but_what_asks_for_it(directory: Path) -> None:
    disk = FaultyDisk()
    disk.may_sync.clear()
    try:
        with Spool(directory, disk=disk) as quick:
            async with asyncio.timeout(60):
                await quick.wait_until_durable(quick.append(b"x"))
            assert everything(Reader(directory)) == [b"x"]
            disk.may_sync.set()
    finally:
        disk.may_sync.set()


async def test_with_fsync_reached_waits_for_the_disk(directory: Path) -> None:
    disk = FaultyDisk()
    with Spool(directory, disk=disk, durability="fsync") as spool:
        disk.may_sync.clear()
        record = spool.append(b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await spool.wait_until_durable(record)
        assert spool.written_count == record
        disk.may_sync.set()
        async with asyncio.timeout(60):
            await spool.wait_until_durable(record)
        assert disk.syncs


async def test_what_is_to_be_done_soon_is_kept_with_the_present_group(directory: Path) -> None:
    with Spool(directory) as spool:
        done = asyncio.Event()

        def work() -> None:
            spool.append(b"later")
            done.set()

        spool.call_soon(work)
        spool.append(b"sooner")
        await done.wait()
        assert spool.written_count == spool.appended_count == 2
    assert everything(Reader(directory)) == [b"sooner", b"later"]


async def test_what_arrives_is_passed_on_between_two_pieces_of_a_groups_work(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_work, "WORK_SLICE", 0.0)
    loop, order, done = asyncio.get_running_loop(), list[str](), asyncio.Event()
    with Spool(directory) as spool:

        def first() -> None:
            order.append("first")
            spool.append(b"first")
            loop.call_soon(order.append, "passed on")
            spool.call_soon(of_the_next_group)

        def second() -> None:
            order.append("second")
            spool.append(b"second")

        def of_the_next_group() -> None:
            order.append("next group")
            assert spool.written_count == 2
            done.set()

        spool.call_soon(first)
        spool.call_soon(second)
        async with asyncio.timeout(60):
            await done.wait()
    assert order == ["first", "passed on", "second", "next group"]


async def test_work_that_takes_long_is_done_less_often(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, times, done = 0.0, list[float](), asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(scheduled_work, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: now}))
    durations = iter([0.0001, 0.001, 0.003, 1.0, 0.001])

    def call_after(seconds: float, work: Callable[[], None]) -> None:
        nonlocal now
        now += seconds
        loop.call_soon(work)

    with Spool(directory) as spool:
        monkeypatch.setattr(loop, "call_later", call_after)

        def work() -> None:
            nonlocal now
            times.append(now)
            if (duration := next(durations, None)) is None:
                done.set()
            else:
                now += duration
                spool.call_soon(work)

        spool.call_soon(work)
        async with asyncio.timeout(60):
            await done.wait()
    pauses = [0.002 + 0.0001, 0.021, 0.063, 1.0 + scheduled_work.MAX_WORK_PAUSE, 0.021]
    assert [later - sooner for sooner, later in pairwise(times)] == pytest.approx(pauses)


async def test_records_are_synced_at_the_end_of_a_group_however_often_work_is_done(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, disk, done, group_ends = asyncio.get_running_loop(), FaultyDisk(), asyncio.Event(), list[Callable[[], None]]()
    with Spool(directory, disk=disk) as spool:
        disk.syncs.clear()
        monkeypatch.setattr(
            loop,
            "call_later",
            lambda seconds, work: group_ends.append(work) if seconds == writer.GROUP_INTERVAL else loop.call_soon(work),
        )
        left = 3

        def work() -> None:
            nonlocal left
            assert spool.written_count == 3 - left
            spool.append(b"a record")
            left -= 1
            if left:
                spool.call_soon(work)
            else:
                loop.call_soon(done.set)

        spool.call_soon(work)
        async with asyncio.timeout(60):
            await done.wait()
        assert (spool.written_count, disk.syncs, len(group_ends)) == (3, [], 1)


async def test_a_spool_that_is_closed_amid_a_groups_work_does_all_of_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_work, "WORK_SLICE", 0.0)
    has_begun = asyncio.Event()
    with Spool(directory) as spool:

        def first() -> None:
            has_begun.set()
            spool.append(b"first")

        def second() -> None:
            spool.append(b"second")

        spool.call_soon(first)
        spool.call_soon(second)
        await has_begun.wait()
    assert everything(Reader(directory)) == [b"first", b"second"]


async def test_what_was_to_be_done_soon_is_done_before_the_spool_is_closed(directory: Path) -> None:
    with Spool(directory) as spool:

        def late() -> None:
            spool.append(b"later")

        spool.call_soon(late)
    assert everything(Reader(directory)) == [b"later"]


async def test_many_waiters_are_woken_together(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    calls = 0
    real = loop.call_soon_threadsafe

    def count_calls(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", count_calls)
    with Spool(directory) as spool:
        await asyncio.gather(*(spool.wait_until_durable(spool.append(b"x" * 100)) for _ in range(500)))
    assert calls < 50


async def test_what_nobody_waits_for_is_written_by_the_loop_a_group_at_a_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda _after, end: ends.append(end))
    with Spool(directory) as spool:
        spool.append(b"one")
        spool.append(b"two")
        assert (spool.written_count, len(ends)) == (0, 1)
        ends.pop()()
        assert spool.written_count == 2
        spool.append(b"three")
        assert len(ends) == 1, "another group has begun"


async def test_the_loop_s_thread_writes_until_two_writes_in_a_row_are_slow(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SLOW_WRITE_BACKOFF", 1e9)
    are_written = []
    with Spool(directory) as spool:
        for is_slow in (True, False, True, True, False):
            monkeypatch.setattr(writer, "SLOW_WRITE", -1 if is_slow else 60)
            are_written.append(spool.write_now(spool.append(b"x")))
        async with asyncio.timeout(60):
            await spool.wait_until_durable(5)
    assert are_written == [True, True, True, True, False]


async def test_whoever_stops_waiting_harms_nobody(directory: Path) -> None:
    with Spool(directory, durability="fsync") as spool:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(spool.wait_until_durable(spool.append(b"x"))) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
        assert [task.cancelled() for task in tasks] == [True, False] * 10


def test_what_is_committed_is_never_read_again(directory: Path) -> None:
    records = [b"record %d" % n for n in range(100)]
    fill(directory, records, segment_bytes=400)
    seen: list[bytes] = []
    while True:
        reader = Reader(directory)
        frames = reader.read(100)
        if not frames:
            break
        seen += [bytes(payload) for _, payload in frames]
        reader.commit(frames[-1][0])
        assert min(segment_numbers(directory)) >= frames[-1][0].segment
        reader.close()

    assert seen == records
    assert len(segment_numbers(directory)) == 1


def test_what_is_not_committed_is_read_again(directory: Path) -> None:
    fill(directory, [b"one", b"two", b"three"])
    first = Reader(directory).read()
    reader = Reader(directory)
    reader.commit(first[0][0])

    assert everything(Reader(directory)) == [b"two", b"three"]
    assert everything(reader) == [b"one", b"two", b"three"]


def test_the_cursor_is_on_disk_before_anything_is_deleted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(directory, [b"x" * 100 for _ in range(30)], segment_bytes=300)
    reader = Reader(directory)
    frames = reader.read()

    def die(*_: object) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(OSError, match="killed here"):
            reader.commit(frames[-1][0])
    assert everything(Reader(directory)) == []
    with monkeypatch.context() as patch:
        patch.setattr("store.spool.cursor.sync_directory", die)
        again = Reader(directory)
        with pytest.raises(OSError, match="killed here"):
            again.commit(Position(0, 0))
    assert len(segment_numbers(directory)) > 1, "nothing was deleted before the cursor was safe"


def test_a_cursor_that_nobody_can_read_loses_nothing(directory: Path) -> None:
    fill(directory, [b"one", b"two"])
    for rubbish in (b"", b"{", b"[]", b'{"segment": "x"}', b"\xff" * 40, b'{"segment": 1, "offset": null}'):
        (directory / "cursor").write_bytes(rubbish)
        assert everything(Reader(directory)) == [b"one", b"two"]


def test_a_cursor_behind_the_end_of_its_segment_goes_on_with_the_next(directory: Path) -> None:
    # As after a power failure: the cursor was synced, the last group of the segment was not, and the writer began another.
    fill(directory, [b"lost"])
    reader = Reader(directory)
    reader.commit(Position(1, 1_000_000))
    fill(directory, [b"new"])

    assert everything(Reader(directory)) == [b"new"]


def test_two_writers_cannot_share_a_spool(directory: Path) -> None:
    with Spool(directory), pytest.raises(SpoolTaken, match="two workers cannot share a spool"):
        Spool(directory)
    fill(directory, [b"free again"])


def test_a_reader_that_looks_does_not_keep_a_writer_out(directory: Path) -> None:
    fill(directory, [b"x"])
    reader = Reader(directory)
    everything(reader)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            reader.is_orphaned()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(5):
            fill(directory, [b"y"])
    finally:
        stop.set()
        looking.join()


def test_a_spool_that_is_taken_or_unread_is_not_removed(directory: Path) -> None:
    fill(directory, [b"unread"])
    assert not Reader(directory).is_orphaned()
    assert not Reader(directory).remove()

    reader = Reader(directory)
    everything(reader)
    with Spool(directory):
        assert not reader.is_orphaned()
        assert not reader.remove()
    assert everything(reader) == []
    assert reader.is_orphaned()
    assert reader.remove()
    assert not directory.exists()
    fill(directory, [b"begun anew"])
    assert everything(Reader(directory)) == [b"begun anew"]


def test_the_end_is_behind_the_last_record(directory: Path) -> None:
    assert Reader(directory).end_position() is None
    with Spool(directory):
        assert Reader(directory).end_position() is None
    fill(directory, [b"one"])
    fill(directory, [])
    reader = Reader(directory)
    (position, _), *_ = reader.read()

    end = reader.end_position()
    assert end is not None
    assert (end.segment, end.offset) == (position.segment, position.offset)


def test_statistics_say_what_waits(directory: Path) -> None:
    with Spool(directory, now=lambda: 1234) as spool:
        spool.append(b"x" * 100)
        spool.append(b"y" * 50)
    reader = Reader(directory)
    frames = reader.read()
    assert (reader.stats().segments, reader.stats().oldest_at) == (1, 1234)

    reader.commit(frames[0][0])
    assert reader.stats().bytes_pending == OVERHEAD + 50
    reader.commit(frames[1][0])
    assert (reader.stats().bytes_pending, reader.stats().oldest_at) == (0, None)


async def test_a_full_spool_says_so_and_goes_on_when_it_is_emptied(directory: Path) -> None:
    reader = Reader(directory)
    with Spool(directory, max_bytes=64_000) as spool:
        with pytest.raises(SpoolFull, match="check why the store server does not drain it"):
            overfill(spool)
        taken = spool.appended_count
        assert 40 < taken < 64
        await spool.wait_until_durable(taken)
        while frames := reader.read():
            reader.commit(frames[-1][0])
        async with asyncio.timeout(60):
            more = await _as_soon_as_possible(spool, b"again")
        await spool.wait_until_durable(more)
        # The writer had to begin another segment, so that the reader could delete the current one.
        reader.commit(reader.read()[-1][0])
        assert reader.stats().bytes_pending < 1000
        assert everything(Reader(directory)) == []


async def _as_soon_as_possible(spool: Spool, record: bytes) -> int:
    while True:
        try:
            return spool.append(record)
        except SpoolFull:
            await asyncio.sleep(0.005)


def test_what_an_earlier_writer_left_counts(directory: Path) -> None:
    fill(directory, [b"x" * 1000 for _ in range(50)])
    with Spool(directory, max_bytes=52_000) as spool:
        with pytest.raises(SpoolFull):
            overfill(spool)
        assert spool.appended_count < 3


def test_memory_is_bounded_when_the_disk_hangs(directory: Path) -> None:
    class Hanging(FaultyDisk):
        def write(self, handle: int, data: bytes | memoryview) -> int:
            self.may_sync.wait(30)
            return super().write(handle, data)

    disk = Hanging()
    with Spool(directory, disk=disk, max_memory=100_000) as spool:
        disk.may_sync.clear()
        with pytest.raises(SpoolFull, match="too slow"):
            overfill(spool)
        disk.may_sync.set()
    assert len(everything(Reader(directory))) == spool.appended_count < 150


@pytest.mark.parametrize("size", [0, (256 << 20) + 1])
def test_a_record_of_no_or_of_monstrous_size_is_our_mistake(directory: Path, size: int) -> None:
    with Spool(directory) as spool, pytest.raises((ValueError, SpoolFull)):
        spool.append(bytes(size))


def test_a_closed_spool_takes_nothing(directory: Path) -> None:
    with Spool(directory) as spool:
        spool.append(b"x")
    with pytest.raises(SpoolBroken, match="closed"):
        spool.append(b"y")
    assert spool.written_count == 1


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SpoolBroken, match="cannot be created"):
        Spool(tmp_path / "file" / "spool")
    with pytest.raises(SpoolBroken, match="No space left"):
        Spool(tmp_path / "full", disk=FaultyDisk(room=0))
    # and its lock was released
    fill(tmp_path / "full", [b"x"])


def test_files_are_for_their_owner_alone(directory: Path) -> None:
    fill(directory, [b"x"])
    assert directory.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in directory.iterdir())


async def test_a_frame_that_was_half_written_when_it_was_looked_at_is_not_damaged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [b"first " * 20, b"second " * 20]
    real = os.pread
    looks = 0

    def early(handle: int, size: int, offset: int) -> bytes:
        """Read the frames when the first of them is on disk except for its last bytes."""
        nonlocal looks
        looks += 1
        data = real(handle, size, offset)
        return data[:50] if looks in (2, 3) else data  # the head, then the frames, then all of the first frame

    with Spool(directory) as spool:
        for record in records:
            await spool.wait_until_durable(spool.append(record))
        monkeypatch.setattr(os, "pread", early)
        reader = Reader(directory)
        found = [payload for _, payload in reader.read()]
        monkeypatch.undo()
    assert looks > 3
    assert reader.take_damage() == []
    assert found == records
