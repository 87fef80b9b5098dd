"""Each system call with which the store server reads a spool fails with each error: nothing is lost, and no loop is busy."""

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from calls.derive import derive_call
from calls.events import EffectBatch, Gap, ReplayReported
from calls.redaction.redactor import Redactor
from proxy.recording.recorder import Recorder
from store.attribution.grouping import RunGrouping
from store.ingest import drain, ingester
from store.ingest.batch_writer import BatchResult, BatchWriter, DerivedExchange
from store.ingest.drain import Drain
from store.ingest.ingester import Ingester
from store.ingest.open_exchange_files import OpenExchangeFiles
from store.spool import Reader, Spool
from tests.calls.secrets import KEY
from tests.proxy.recording.open_recorder import JSON, URL
from tests.store.failing_calls import CALLS, FailingCalls
from tests.store.running_store import PROFILES
from tests.store.test_spool_injection import clock

PATTERNS = ((1, 1), (2, 1), (3, 2), (5, 12))
"""The first call that fails, and how many fail."""

FAILURES = (
    *((error, pattern) for error in (errno.EIO, errno.ENOSPC) for pattern in PATTERNS),
    *((errno.EMFILE, PATTERNS[0]), (errno.EROFS, PATTERNS[2])),
)
"""What reads a spool makes room on a full disk, and does the same after each other error."""

EXCHANGES = 12


class MemoryBatchWriter(BatchWriter):
    """Stores in memory what Postgres would store, with the same ids."""

    def __init__(self) -> None:
        self.exchanges: dict[str, DerivedExchange] = {}
        self.gaps: list[Gap] = []

    database: Any = None
    project = "default"

    def for_project(self, project: str) -> BatchWriter:
        return self

    async def write_batch(
        self,
        batch: Sequence[DerivedExchange],
        gaps: Sequence[Gap] = (),
        replays: Sequence[ReplayReported] = (),
        effects: Sequence[EffectBatch] = (),
    ) -> BatchResult:
        self.exchanges |= {kept.exchange.id: kept for kept in batch}
        self.gaps += gaps
        return BatchResult(exchanges=len(batch), quarantined=())


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingester, "PASS_PAUSES", (0.001, 0.005))
    monkeypatch.setattr(ingester, "STOP_TIMEOUT", 0.1)
    monkeypatch.setattr(ingester, "MAX_OPEN_WEIGHT", 400)
    monkeypatch.setattr(drain, "PARK_AFTER_SEGMENTS", 1)

    async def group_batch(_: RunGrouping, batch: Sequence[DerivedExchange]) -> Sequence[DerivedExchange]:
        return batch

    monkeypatch.setattr(RunGrouping, "group_batch", group_batch)


@pytest.fixture(scope="module")
def damaged_spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool of a dead worker: several segments, an exchange that is open from the start, and a damaged part."""
    directory = tmp_path_factory.mktemp("written") / "worker-a"
    asyncio.run(write(directory))
    damaged = directory / "00000002.seg"
    content = bytearray(damaged.read_bytes())
    content[2000:2040] = b"?" * 40
    damaged.write_bytes(content)
    return directory


async def write(directory: Path) -> None:
    times = clock()
    with Spool(directory, segment_bytes=4096) as spool:
        recorder = Recorder(spool, Redactor(key=KEY), now=lambda: next(times))
        early = recorder.begin(run="early", method="POST", url=URL, http_version="HTTP/1.1", headers=JSON)
        early.record_data("request", b"{}", 1)
        await early.wait_until_recorded()
        for number in range(EXCHANGES):
            one = recorder.begin(run=f"run-{number}", method="POST", url=URL, http_version="HTTP/1.1", headers=JSON)
            one.record_request(b"{}", 1)
            await one.wait_until_recorded()
            one.record_response(2, 200, "OK", "HTTP/1.1", (), b"x" * 1000, completes_exchange=True)
            await one.wait_until_recorded()
            if number == 3:
                # An earlier store server has parked the open exchange and died.
                died = Drain(directory, now=lambda: 0)
                died.gather(0)
                died.reader.close()
        early.record_end("request", 2)
        await early.wait_until_recorded()


def is_drained(spools: Path, one: Ingester) -> bool:
    # With lstat, which no test makes fail.
    return not (os.path.lexists(spools / "worker-a") or one.troubles)


async def drain_all(spools: Path, *, seconds: float = 60) -> MemoryBatchWriter:
    """Run a store server until no spool is left; return all that it stored."""
    ingest = MemoryBatchWriter()
    one = Ingester(spools, ingest, lambda exchange: derive_call(exchange, PROFILES))
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run())
        try:
            async with asyncio.timeout(seconds):
                while not is_drained(spools, one):  # noqa: ASYNC110 - a directory sends no event
                    await asyncio.sleep(0.01)
        finally:
            one.stop()
    return ingest


def reasons(gaps: Sequence[Gap]) -> set[str]:
    return {gap.reason for gap in gaps}


@pytest.mark.parametrize("call", [*CALLS, "write"])
async def test_what_a_worker_left_is_stored_whatever_call_fails(
    tmp_path: Path, damaged_spool: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingester, "RETRY_PAUSES", (0.002, 0.005))
    monkeypatch.setattr(ingester, "COMMIT_EVERY", 0.0)
    shutil.copytree(damaged_spool, tmp_path / "calm" / "spool" / "worker-a")
    calm = await drain_all(tmp_path / "calm" / "spool")
    assert len(calm.exchanges) >= EXCHANGES
    assert any(": damaged" in reason for reason in reasons(calm.gaps))

    met = 0
    for error, (first, times) in FAILURES:
        spools = tmp_path / f"{error}-{first}" / "spool"
        shutil.copytree(damaged_spool, spools / "worker-a")
        failing = FailingCalls(call, error, spools, first=first, times=times)
        with failing.injected_into(monkeypatch):
            found = await drain_all(spools)
        met += failing.injected
        about = (call, errno.errorcode[error], first, failing.injected)
        assert found.exchanges.keys() == calm.exchanges.keys(), about
        lacking = "; no copy of it could be kept: No space left on device"
        assert {reason.replace(lacking, "") for reason in reasons(found.gaps)} == reasons(calm.gaps), about
        kept = {path.name for path in (spools.parent / "damaged").rglob("*") if path.is_file()}
        assert kept or lacking in "".join(reasons(found.gaps)), about
    assert met


@pytest.mark.parametrize("call", [call for call in (*CALLS, "write") if call not in ("close", "truncate")])
async def test_a_call_that_fails_for_ever_is_tried_seldom_and_said(
    tmp_path: Path, damaged_spool: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who tried in each pass would try a hundred and fifty times.
    monkeypatch.setattr(ingester, "PASS_PAUSES", (0.01, 0.01))
    spools = tmp_path / "spool"
    shutil.copytree(damaged_spool, spools / "worker-a")
    ingest = MemoryBatchWriter()
    one = Ingester(spools, ingest, lambda exchange: derive_call(exchange, PROFILES))
    failing = FailingCalls(call, errno.EIO, spools, first=1, times=1 << 40)
    with failing.injected_into(monkeypatch):
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run())
            await asyncio.sleep(1.5)
            if failing.injected:
                async with asyncio.timeout(60):
                    while not one.troubles:  # noqa: ASYNC110 - it has failed, and a thread is about to say so
                        await asyncio.sleep(0.01)
                assert os.strerror(errno.EIO) in "".join(one.troubles.values())
            one.stop()
    # The directory of the spools is listed only a few times a second, so a failure may take longer.
    assert failing.injected < (1000 if call in ("scandir", "stat") else 60), (call, failing.injected)
    assert len(ingest.gaps) < 20


def test_a_parked_exchange_that_could_not_be_synced_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync, the next one succeeds although the bytes are not on disk."""
    parked = OpenExchangeFiles(tmp_path / "open")
    parked.append("a", [], Drain(tmp_path, now=lambda: 0).position)
    before = parked.path("a").stat().st_ino
    with FailingCalls("fsync", errno.EIO, tmp_path, first=1, times=1).injected_into(monkeypatch):
        parked.sync()
    assert parked.path("a").stat().st_ino != before
    assert parked.path("a").read_bytes()


@pytest.mark.parametrize("call", ["unlink", "rmdir"])
async def test_a_spool_that_is_half_removed_does_not_look_damaged(
    tmp_path: Path, damaged_spool: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(1, 8):
        directory = tmp_path / str(first) / "worker-a"
        shutil.copytree(damaged_spool, directory)
        reader = Reader(directory)
        while reader.read():
            pass
        before = [str(damage) for damage in reader.take_damage()]
        failing = FailingCalls(call, errno.EIO, directory, first=first, times=1 << 40)
        with failing.injected_into(monkeypatch), contextlib.suppress(OSError):
            reader.remove()
        if not failing.injected:
            break
        again = Reader(directory)
        while again.read():
            pass
        assert [str(damage) for damage in again.take_damage() if str(damage) not in before] == []
        again.close()


@pytest.fixture(autouse=True)
def _no_handle_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before + 4
