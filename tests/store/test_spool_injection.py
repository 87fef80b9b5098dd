"""Each system call of the spool fails with each error, once and for a while: acknowledged exchanges are stored or have a gap."""

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from calls.events import Gap, ReplayReported, decode_records
from calls.exchange_builder import ExchangeBuilder
from calls.model import Exchange
from calls.redaction.redactor import Redactor
from proxy.recording import spool_outbox as ledger
from proxy.recording.recorder import Recorder
from store.spool import Reader, Spool, SpoolError
from store.spool.disk import Disk
from store.spool.writer import Durability
from tests.calls.secrets import KEY
from tests.proxy.recording.open_recorder import JSON, URL
from tests.store.disks import CALLS, InjectingDisk

ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EDQUOT]
PATTERNS = ((2, 1), (3, 4), (5, 25))
"""The first call that fails, and how many fail."""

FAILURES = (
    *((errno.EIO, pattern) for pattern in PATTERNS),
    *(
        (errno.ENOSPC, PATTERNS[2]),
        (errno.EMFILE, PATTERNS[0]),
        (errno.EROFS, PATTERNS[1]),
        (errno.EDQUOT, PATTERNS[2]),
    ),
)
"""What writes a spool does the same after each error: each pattern comes once with one of them, and each other error once."""

AT_START = ("free_bytes", "open_directory")
"""Calls that are made only when a spool is opened, which then fails with a message."""

EXCHANGES = 28
BODY = 300


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "RETRY_AFTER", 0.01)
    monkeypatch.setattr("store.spool.writer.RETRY_INTERVAL", 0.01)
    monkeypatch.setattr("store.spool.writer.GROUP_INTERVAL", 0.001)


def clock() -> Iterator[int]:
    now = 1_700_000_000_000_000_000
    while True:
        now += 1_000_000
        yield now


@dataclass
class DrainedRecords:
    """The records read from a spool while it was written and afterwards."""

    reader: Reader
    payloads: list[bytes] = field(default_factory=list)

    def drain(self) -> None:
        while frames := self.reader.read():
            self.payloads += [bytes(payload) for _, payload in frames]
        self.reader.commit(self.reader.position)

    def accounted_runs(self) -> set[str]:
        """The runs whose exchange is stored completely, and those that have a gap."""
        folds: dict[str, ExchangeBuilder] = {}
        named = set()
        for payload in self.payloads:
            for item in decode_records(payload):
                if isinstance(item, Gap):
                    named.add(item.run)
                elif not isinstance(item, ReplayReported):
                    folds.setdefault(item.id, ExchangeBuilder()).feed(item)
        exchanges = [fold.build() for fold in folds.values() if fold.has_begun]
        return named | {one.run for one in exchanges if one.outcome == "completed" and whole(one)}


def whole(exchange: Exchange) -> bool:
    body = exchange.response.body if exchange.response else None
    return body is not None and len(body.data) == BODY and not body.truncated


async def record(directory: Path, disk: Disk, durability: Durability) -> tuple[set[str], DrainedRecords]:
    """Record exchanges while the disk fails; return the runs of acknowledged ones, and what was read."""
    times = clock()
    acknowledged = set()
    # Small segments and little room, so that every call of the spool is made many times, `used_bytes` too.
    with Spool(directory, disk=disk, durability=durability, segment_bytes=2000, max_bytes=8000) as spool:
        drained = DrainedRecords(Reader(directory))
        recorder = Recorder(spool, Redactor(key=KEY), now=lambda: next(times))
        for number in range(EXCHANGES):
            run = f"run-{number}"
            one = recorder.begin(run=run, method="POST", url=URL, http_version="HTTP/1.1", headers=JSON)
            one.record_request(b"{}", 1)
            await one.wait_until_recorded()
            one.record_response(2, 200, "OK", "HTTP/1.1", (), b"x" * BODY, completes_exchange=True)
            await one.wait_until_recorded()
            acknowledged.add(run)
            await asyncio.sleep(0.002 if number % 4 == 0 else 0)
            if number % 8 == 7:
                drained.drain()
        async with asyncio.timeout(60):
            while not recorder.outbox.write_owed():
                drained.drain()
                await asyncio.sleep(0.005)
        await recorder.outbox.drain()
    drained.drain()
    # An incomplete record that could not be cut off is skipped, and the complete one is in the next segment.
    assert [
        str(damage) for damage in drained.reader.take_damage() if "incomplete at its end" not in damage.reason
    ] == []
    drained.reader.close()
    return acknowledged, drained


@pytest.mark.parametrize("durability", ["process", "fsync"])
@pytest.mark.parametrize("call", [call for call in CALLS if call not in AT_START])
async def test_what_was_acknowledged_is_stored_or_a_gap_says_so(
    tmp_path: Path, call: str, durability: Durability
) -> None:
    met = 0
    for error, (first, times) in FAILURES:
        disk = InjectingDisk(call, error, first=first, times=times)
        directory = tmp_path / f"{error}-{first}"
        acknowledged, drained = await record(directory, disk, durability)
        met += disk.injected
        assert len(acknowledged) == EXCHANGES
        assert acknowledged - drained.accounted_runs() == set(), (call, error, first, disk.injected, disk.calls)
    # A file is truncated only after a failed write, and the used bytes are measured only if the spool is full.
    assert met or call in ("truncate", "used_bytes")


@pytest.mark.parametrize("call", AT_START)
@pytest.mark.parametrize("error", ERRORS)
def test_a_spool_that_cannot_be_opened_says_so(tmp_path: Path, call: str, error: int) -> None:
    with pytest.raises((SpoolError, OSError)):
        Spool(tmp_path / "spool", disk=InjectingDisk(call, error, first=1, times=1))


class FlawedDisk(Disk):
    """A bug: an exception that the disk did not cause is raised in one of the spool's threads, once."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.raised = 0

    def _meet(self, call: str) -> None:
        if call == self.call and not self.raised:
            self.raised += 1
            raise ZeroDivisionError("a mistake")

    def sync(self, handle: int) -> None:
        self._meet("sync")
        super().sync(handle)

    def create(self, path: Path) -> int:
        if path.name != "00000001.seg":
            self._meet("create")
        return super().create(path)


@pytest.mark.parametrize("call", ["sync", "create"])
async def test_a_thread_that_fails_is_started_again(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FlawedDisk(call)
    acknowledged, drained = await record(tmp_path / "spool", disk, "process")

    assert disk.raised
    assert acknowledged - drained.accounted_runs() == set()
    assert "is started again" in caplog.text
