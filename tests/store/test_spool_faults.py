"""A spool keeps acknowledged records on a full or failing disk, with torn tails and flipped bits, and after kill -9."""

import asyncio
import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calls.model import UnknownFormat
from store.spool import Reader, Spool, SpoolBroken, SpoolTaken
from store.spool.place import claim_spool
from store.spool.progress import records_written
from store.spool.segment import MAGIC, MARK, OVERHEAD, encode_frames, frame_at, read_head, segment_numbers, segment_path
from tests.store.disks import FaultyDisk
from tests.store.test_spool import directory, everything, fill
from tests.support.examples import many_examples

__all__ = ["directory"]

RECORDS = [b"record %d " % n + b"x" * (n * 7 % 90) for n in range(40)]


async def wait_until_recovered(spool: Spool, record: bytes = b"after") -> None:
    """Wait until the spool accepts records again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await spool.wait_until_durable(spool.append(record))
                return
            except SpoolBroken:
                await asyncio.sleep(0.01)


async def test_a_full_disk_is_said_and_what_was_taken_is_kept_until_there_is_room(directory: Path) -> None:
    disk = FaultyDisk(room=5000)
    with Spool(directory, disk=disk) as spool:
        taken = [spool.append(b"%04d" % n + b"x" * 96) for n in range(100)]
        with pytest.raises(SpoolBroken, match="No space left on device"):
            await spool.wait_until_durable(taken[-1])
        await spool.wait_until_durable(spool.written_count)
        assert 30 < spool.written_count < 50
        trouble = spool.trouble
        assert trouble is not None
        with pytest.raises(SpoolBroken):
            spool.append(b"refused")
        disk.room = 1 << 30
        await wait_until_recovered(spool)
        assert spool.trouble is None
        await spool.wait_until_durable(taken[-1])
    reader = Reader(directory)
    assert everything(reader) == [b"%04d" % n + b"x" * 96 for n in range(100)] + [b"after"]
    assert reader.take_damage() == [], "half a frame was cut off"
    assert len(segment_numbers(directory)) == 2


@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT, errno.EROFS])
async def test_a_failing_disk_is_a_reason_and_not_a_crash(directory: Path, code: int) -> None:
    disk = FaultyDisk()
    with Spool(directory, disk=disk) as spool:
        await spool.wait_until_durable(spool.append(b"before"))
        disk.fails_with = code
        with pytest.raises(SpoolBroken, match=os.strerror(code)):
            await spool.wait_until_durable(spool.append(b"kept in memory"))
        disk.fails_with = None
        await wait_until_recovered(spool)
    assert everything(Reader(directory)) == [b"before", b"kept in memory", b"after"]


async def test_a_disk_that_takes_little_at_a_time_still_gets_it_all(directory: Path) -> None:
    disk = FaultyDisk(portion=7)
    with Spool(directory, disk=disk) as spool:
        for record in RECORDS:
            spool.append(record)
        await spool.wait_until_durable(len(RECORDS))
    assert everything(Reader(directory)) == RECORDS
    assert disk.writes > len(RECORDS)


async def test_a_failed_sync_is_never_taken_for_a_good_one(directory: Path) -> None:
    disk = FaultyDisk()
    with Spool(directory, disk=disk, durability="fsync") as spool:
        await spool.wait_until_durable(spool.append(b"before"))
        bad = disk.syncs[-1]
        disk.sync_fails_with = errno.EIO
        lost = spool.append(b"who knows")
        with pytest.raises(SpoolBroken, match="could not be synced"):
            await spool.wait_until_durable(lost)
        disk.sync_fails_with = None
        disk.syncs.clear()
        await spool.wait_until_durable(spool.append(b"after"))
        with pytest.raises(SpoolBroken):
            await spool.wait_until_durable(lost)
        assert bad not in disk.syncs, "that file's sync says nothing any more"
        assert spool.fault_count == 1
    assert everything(Reader(directory)) == [b"before", b"who knows", b"after"]
    assert len(segment_numbers(directory)) == 2


def test_closing_on_a_dead_disk_ends_and_counts(directory: Path) -> None:
    disk = FaultyDisk()
    spool = Spool(directory, disk=disk)
    disk.fails_with = errno.EIO
    spool.append(b"lost")
    spool.append(b"lost too")

    assert spool.close() == 2


LIMITED = """
import asyncio, resource, signal, sys
from pathlib import Path
from store.spool import Spool, SpoolBroken
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    with Spool(Path(sys.argv[1]), durability="fsync") as spool:
        # A real short write, and then a real error, from a real file system.
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        for n in range(60):
            spool.append(b"%04d" % n + b"x" * 300)
        try:
            await spool.wait_until_durable(60)
        except SpoolBroken as error:
            print(error, flush=True)
        while spool.written_count < 60:
            await asyncio.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
asyncio.run(main())
"""


def test_a_real_short_write_is_cut_back_and_continued_elsewhere(directory: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    writing = subprocess.run(
        [sys.executable, "-c", LIMITED, str(directory)], capture_output=True, text=True, timeout=60, check=True
    )

    assert "File too large" in writing.stdout
    reader = Reader(directory)
    assert everything(reader) == [b"%04d" % n + b"x" * 300 for n in range(60)]
    assert reader.take_damage() == []


KILLED = """
import asyncio, random, sys
from pathlib import Path
from store.spool import Spool
async def main():
    spool = Spool(Path(sys.argv[1]), segment_bytes=20_000, durability=sys.argv[2])
    async def one(worker):
        for n in range(100_000):
            record = b"%d/%d " % (worker, n) + random.randbytes(random.randrange(400))
            for _ in range(random.randrange(4)):
                spool.append(b"nobody waits for this")
            await spool.wait_until_durable(spool.append(record))
            sys.stdout.write(f"{worker} {n}\\n")
            sys.stdout.flush()
    await asyncio.gather(*(one(worker) for worker in range(8)))
asyncio.run(main())
"""


@pytest.mark.parametrize("durability", ["process", "fsync"])
def test_kill_9_loses_nothing_that_was_reached(directory: Path, durability: str) -> None:
    for round_ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(directory), durability], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(random.Random(round_).randrange(50, 400))]
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.read().splitlines(keepends=True)
        child.stdout.close()
        assert child.wait(10) == -signal.SIGKILL

        reader = Reader(directory)
        found = everything(reader)
        kept = {tuple(map(int, record.split(b" ")[0].split(b"/"))) for record in found if record[:1].isdigit()}
        reached = {tuple(map(int, line.split())) for line in lines if line.endswith("\n")}
        assert reached <= kept
        # The kernel may end a write between two pages where the process is killed: its last record, which nobody waits for any more.
        damage = reader.take_damage()
        assert [(one.reason, one.at.segment) for one in damage] in (
            [],
            [("incomplete at its end", reader.position.segment)],
        )
        assert reader.is_orphaned()
        reader.commit(reader.position)
        reader.close()


# -- damage


def one_segment(directory: Path) -> Path:
    fill(directory, RECORDS)
    return segment_path(directory, 1)


@pytest.mark.parametrize("cut", range(1, 65))
def test_a_torn_tail_costs_only_what_it_tore(directory: Path, cut: int) -> None:
    segment = one_segment(directory)
    os.truncate(segment, segment.stat().st_size - cut)
    fill(directory, [b"the next writer"])
    reader = Reader(directory)

    *found, last = everything(reader)

    assert last == b"the next writer"
    assert found == RECORDS[: len(found)]
    assert len(found) >= len(RECORDS) - 1 - cut // 20
    whole = {sum(OVERHEAD + len(record) for record in RECORDS[-count:]) for count in range(1, 5)}
    (damage,) = reader.take_damage()
    if cut in whole:  # no frame is torn, and only the count shows the loss
        assert f"{len(RECORDS) - len(found)} record" in damage.reason
        return
    assert damage.at.segment == 1
    assert damage.at.offset + damage.size == segment.stat().st_size
    assert "incomplete at its end" in str(damage)


def test_a_torn_tail_of_a_living_writer_is_waited_for(directory: Path) -> None:
    with Spool(directory) as spool:
        data = encode_frames([b"slow record"], _salt(directory))
        segment = segment_path(directory, 1)
        reader = Reader(directory)
        for byte in data[:-1]:
            with segment.open("ab") as file:
                file.write(bytes([byte]))
            assert reader.read() == []
        with segment.open("ab") as file:
            file.write(data[-1:])
        assert [payload for _, payload in reader.read()] == [b"slow record"]
        assert reader.take_damage() == []
        assert spool.trouble is None


def _salt(directory: Path) -> int:
    head = read_head(segment_path(directory, 1).read_bytes())
    assert head is not None
    return head.salt


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=many_examples(150))
@given(st.data())
def test_a_flipped_bit_costs_one_record_and_is_reported(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("flipped")
    content = bytearray(one_segment(directory).read_bytes())
    head = content.index(b"\n") + 1
    at = head + data.draw(st.integers(0, sum(map(len, RECORDS)) + OVERHEAD * len(RECORDS) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    segment_path(directory, 1).write_bytes(content)
    reader = Reader(directory)

    found = everything(reader)

    assert len(found) == len(RECORDS) - 1
    assert [record for record in RECORDS if record in found] == found
    (damage,) = reader.take_damage()
    assert damage.at.offset <= at < damage.at.offset + damage.size
    kept = directory / "damaged" / f"00000001-{damage.at.offset}"
    assert kept.read_bytes() == content[damage.at.offset : damage.at.offset + damage.size]


@pytest.mark.parametrize("size", [512, 4096, 100_000])
@pytest.mark.parametrize("where", ["middle", "end"])
def test_a_page_of_zeros_is_passed_over(directory: Path, size: int, where: str) -> None:
    segment = one_segment(directory)
    content = segment.read_bytes()
    at = len(content) if where == "end" else content.index(MARK, len(content) // 2)
    segment.write_bytes(content[:at] + bytes(size) + content[at:])
    reader = Reader(directory)

    assert everything(reader) == RECORDS
    assert [damage.size for damage in reader.take_damage()] == [size]
    assert reader.is_orphaned()


def test_an_overwritten_page_costs_what_was_in_it(directory: Path) -> None:
    segment = one_segment(directory)
    content = segment.read_bytes()
    segment.write_bytes(content[:1000] + bytes(512) + content[1512:])
    reader = Reader(directory)

    found = everything(reader)

    assert len(RECORDS) - 14 < len(found) < len(RECORDS)
    assert [record for record in RECORDS if record in found] == found
    assert len(reader.take_damage()) == 1


def test_a_missing_segment_is_reported_and_the_rest_is_read(directory: Path) -> None:
    fill(directory, RECORDS, segment_bytes=200)
    there = segment_numbers(directory)
    segment_path(directory, there[3]).unlink()
    reader = Reader(directory)

    found = everything(reader)

    assert 0 < len(found) < len(RECORDS)
    assert found[-1] == RECORDS[-1]
    (damage,) = reader.take_damage()
    assert damage.at.segment == there[3]
    assert "missing" in damage.reason


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def leave_only_the_head(path: Path) -> None:
    os.truncate(path, path.read_bytes().index(b"\n") + 1)


def leave_half(path: Path) -> None:
    content = path.read_bytes()
    os.truncate(path, content.index(MARK, len(content) // 2))


@pytest.mark.parametrize("harm", [delete, empty, leave_only_the_head, leave_half])
@pytest.mark.parametrize("which", ["first", "being read", "middle", "last"])
def test_what_was_taken_out_of_a_spool_is_counted(directory: Path, harm: Callable[[Path], None], which: str) -> None:
    fill(directory, RECORDS, segment_bytes=400)
    there = segment_numbers(directory)
    reader = Reader(directory)
    found = []
    if which == "being read":
        # The cursor is in the middle of the third segment, as after a killed store server.
        while (position := reader.position).segment < there[2] or position.offset < 100:
            ((position, payload),) = reader.read(1)
            found.append(payload)
        reader.commit(position)
        reader.close()
        reader = Reader(directory)
    harm(segment_path(directory, there[{"first": 0, "being read": 2, "middle": 3, "last": -1}[which]]))

    found += everything(reader)

    lost = len(RECORDS) - len(found)
    assert lost > 0
    assert [record for record in RECORDS if record in found] == found
    said = " ".join(map(str, reader.take_damage()))
    assert f"{lost} record" in said or "missing up to segment" in said or "was cut from" in said, said
    assert reader.is_orphaned()
    assert reader.read() == []
    assert reader.take_damage() == [], "it is said once"


def test_the_only_segment_is_missed(directory: Path) -> None:
    fill(directory, RECORDS)
    segment_path(directory, 1).unlink()
    reader = Reader(directory)

    assert reader.read() == []
    (damage,) = reader.take_damage()
    assert f"{len(RECORDS)} records are missing" in str(damage)
    assert f"1 to {len(RECORDS)}" in "".join(path.read_text() for path in (directory / "damaged").iterdir())


@pytest.mark.parametrize("harm", [delete, empty, leave_half])
async def test_a_writer_whose_segment_is_harmed_goes_on_in_another(
    directory: Path, harm: Callable[[Path], None]
) -> None:
    with Spool(directory) as spool:
        for record in RECORDS:
            await spool.wait_until_durable(spool.append(record))
        harm(segment_path(directory, 1))
        async with asyncio.timeout(60):
            while len(segment_numbers(directory)) == (harm is not delete):
                await spool.wait_until_durable(spool.append(b"noticed at the next sync"))
                await asyncio.sleep(0.01)
        reader = Reader(directory)
        found = everything(reader)
        await spool.wait_until_durable(spool.append(b"after"))
        assert everything(reader) == [b"after"]
        assert found.count(b"noticed at the next sync") + len(found) < spool.appended_count
        said = str(reader.take_damage()[-1])
        assert "missing" in said or "not a spool segment" in said


async def test_a_writer_whose_directory_is_deleted_creates_it_again(directory: Path) -> None:
    with Spool(directory) as spool:
        for record in RECORDS:
            await spool.wait_until_durable(spool.append(record))
        reader = Reader(directory)
        assert everything(reader) == RECORDS
        shutil.rmtree(directory)
        async with asyncio.timeout(60):
            while not records_written(directory) or spool.trouble:
                with contextlib.suppress(SpoolBroken):
                    await spool.wait_until_durable(spool.append(b"noticed at the next sync"))
                await asyncio.sleep(0.01)
        with pytest.raises(SpoolTaken):
            claim_spool(directory)
        await spool.wait_until_durable(spool.append(b"after"))
        # The reader has the deleted segment open, and reads it to its end.
        found = everything(reader)
        assert found[-1] == b"after"
        assert len(RECORDS) + len(found) == spool.appended_count
        assert reader.take_damage() == []
        assert records_written(directory) == spool.appended_count


async def test_a_writer_whose_data_directory_is_removed_leaves_nothing_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Spool(data / "spool" / "worker") as spool:
        await spool.wait_until_durable(spool.append(b"before"))
        shutil.rmtree(data)
        async with asyncio.timeout(60):
            while not spool.trouble:
                with contextlib.suppress(SpoolBroken):
                    await spool.wait_until_durable(spool.append(b"after"))
                await asyncio.sleep(0.01)
    assert not data.exists()


def test_a_record_that_comes_just_before_the_next_segment_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(directory, [b"one"])
    with segment_path(directory, 1).open("ab") as file:
        reader = Reader(directory)
        assert everything(reader) == [b"one"]

        advance = reader._open_following

        def go_on() -> None:
            file.write(encode_frames([b"two"], _salt(directory)))
            file.flush()
            fill(directory, [b"three"])

        def overtaken(segment: Any) -> bool:
            """Between two reads, the writer continues and begins another segment."""
            go_on()
            return advance(segment)

        monkeypatch.setattr(reader, "_is_writer_gone", lambda: False)
        monkeypatch.setattr(reader, "_open_following", overtaken)
        found = everything(reader)
        monkeypatch.undo()
        if not found and segment_numbers(directory) == [1]:
            go_on()
        assert found + everything(reader) == [b"two", b"three"]


@pytest.mark.parametrize("name", ["notes.txt", "00000001.seg.bak", "x.seg", ".seg", "00000009"])
def test_a_stray_file_is_left_alone(directory: Path, name: str) -> None:
    fill(directory, RECORDS)
    (directory / name).write_bytes(b"stray")
    reader = Reader(directory)

    assert everything(reader) == RECORDS
    reader.commit(reader.position)
    assert (directory / name).exists()


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(4096), MAGIC, MAGIC + b"{}\n", MAGIC + b"\n" + b"x" * 999])
def test_a_stray_file_with_the_name_of_a_segment_is_reported_and_skipped(directory: Path, content: bytes) -> None:
    fill(directory, RECORDS[:20])
    segment_path(directory, 2).write_bytes(content)
    fill(directory, RECORDS[20:])
    reader = Reader(directory)

    assert everything(reader) == RECORDS
    assert [damage.size for damage in reader.take_damage()] == ([len(content)] if content else [])
    assert reader.is_orphaned()


def test_a_spool_of_a_newer_playhead_is_refused_and_untouched(directory: Path) -> None:
    fill(directory, [b"old"])
    segment_path(directory, 2).write_bytes(MAGIC + b'{"format": 3, "segment": 2}\nwhatever')
    reader = Reader(directory)

    assert [payload for _, payload in reader.read(1)] == [b"old"]
    for _ in range(2):
        with pytest.raises(UnknownFormat, match="this Playhead reads formats up to 2"):
            reader.read()
    assert segment_path(directory, 2).exists()


def test_a_spool_of_an_older_playhead_is_read(directory: Path) -> None:
    fill(directory, RECORDS)
    older = segment_path(directory, 1).read_bytes().replace(b'"format": 2', b'"format": 1', 1)
    segment_path(directory, 1).write_bytes(older)
    reader = Reader(directory)

    assert everything(reader) == RECORDS
    assert reader.take_damage() == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), head=st.booleans())
def test_any_bytes_are_read_through_to_their_end(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, head: bool
) -> None:
    directory = tmp_path_factory.mktemp("any")
    fill(directory, [b"one"])
    if head:
        with segment_path(directory, 1).open("ab") as file:
            file.write(content)
    else:
        segment_path(directory, 1).write_bytes(content)
    fill(directory, [b"two"])

    reader = Reader(directory)

    assert everything(reader)[-1] == b"two"
    assert reader.is_orphaned()


@given(payload=st.binary(min_size=1, max_size=200), salt=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1))
def test_bytes_that_an_agent_sends_are_never_a_frame(payload: bytes, salt: int, other: int) -> None:
    forged = encode_frames([payload], other)

    assert (frame_at(forged, 0, salt) == "bad") == (salt != other)
