"""A spool that refuses costs evidence, never an exception on the wire, and never in silence."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from calls.events import ExchangeClosed
from proxy.recording import spool_outbox as ledger
from tests.proxy.recording.open_recorder import OpenRecorder, open_recorder


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "RETRY_AFTER", 0.02)
    monkeypatch.setattr("store.spool.writer.RETRY_INTERVAL", 0.02)


async def break_disk(at: OpenRecorder) -> None:
    """Let the disk fail, and be known to have failed."""
    at.disk.fails_with = errno.ENOSPC
    one = at.begin(run="breaker")
    await one.wait_until_recorded()
    assert at.spool.trouble is not None
    one.record_close(1, "completed")


async def mend_disk(at: OpenRecorder) -> None:
    """Let the disk work, and the recorder find out by itself."""
    at.disk.fails_with = None
    await until(lambda: at.spool.trouble is None and at.recorder.outbox.write_owed())


async def until(holds: Callable[[], bool]) -> None:
    """Look again and again: what is awaited happens on the spool's own thread, which tells nobody."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def a_call(at: OpenRecorder, run: str) -> bool:
    one = at.begin(run=run)
    one.record_data("request", b"{}", 1)
    one.record_end("request", 2)
    kept = await one.wait_until_recorded()
    one.record_response_head(3, 200, "OK", "HTTP/1.1", ())
    one.record_data("response", b"answer", 4)
    one.record_end("response", 5)
    one.record_close(6, "completed")
    return kept and await one.wait_until_recorded()


async def test_by_policy_gap_calls_go_on_and_the_run_says_what_is_missing(directory: Path) -> None:
    with open_recorder(directory) as at:
        assert await a_call(at, "before")
        await break_disk(at)
        assert [await a_call(at, "during") for _ in range(3)] == [True] * 3
        assert await a_call(at, "elsewhere")
        await mend_disk(at)
        assert await a_call(at, "after")
    runs = [exchange.run for exchange in at.exchanges().values()]
    gaps = {gap.run: gap for gap in at.gaps()}

    assert runs == ["before", "breaker", "after"]
    assert set(gaps) == {"breaker", "during", "elsewhere"}
    assert "No space left on device" in gaps["during"].reason
    assert gaps["during"].reason.endswith("(3 times)")
    assert gaps["during"].count == 3
    assert gaps["elsewhere"].exchange is not None


async def test_nothing_is_kept_behind_what_was_lost(directory: Path) -> None:
    with open_recorder(directory, max_bytes=6000) as at:
        one = at.begin(run="hole")
        one.record_end("request", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", ())
        one.record_data("response", b"kept;", 3)
        # Too large for what is left. It waits in the redactor, since a secret may begin at its end, and leaves it with the
        # next piece, for which there is room.
        one.record_data("response", b"." * 8000 + b" sk-ab", 4)
        one.record_data("response", b" and so on", 5)
        one.record_end("response", 5)
        one.record_close(6, "completed")
        assert await one.wait_until_recorded()
    exchange = at.exchanges()[one.id]
    assert exchange.response is not None
    assert (exchange.response.body.data, exchange.is_truncated) == (b"kept;", True)


async def test_by_policy_refuse_nothing_goes_on_unrecorded(directory: Path) -> None:
    with open_recorder(directory, on_failure="refuse") as at:
        assert await a_call(at, "before")
        await break_disk(at)
        assert not await a_call(at, "during")
        await mend_disk(at)
        assert await a_call(at, "after")
    assert {gap.run for gap in at.gaps()} == {"breaker", "during"}


@pytest.mark.parametrize(("policy", "outcome"), [("gap", "completed"), ("refuse", "refused")])
async def test_an_exchange_that_is_cut_by_a_full_disk_is_truncated_and_closed(
    directory: Path, policy: str, outcome: str
) -> None:
    with open_recorder(directory, on_failure=policy) as at:
        one = at.begin(run="cut")
        one.record_end("request", 1)
        one.record_response_head(2, 200, "OK", "HTTP/1.1", ())
        one.record_data("response", b"kept;", 3)
        assert await one.wait_until_recorded()
        await break_disk(at)
        one.record_data("response", b"lost", 4)
        one.record_end("response", 5)
        one.record_close(6, "completed")
        assert await one.wait_until_recorded() == (policy == "gap")
        await mend_disk(at)
    exchange = at.exchanges()[one.id]

    assert exchange.response is not None
    assert (exchange.response.body.data, exchange.response.body.size) == (b"kept;", 9)
    assert exchange.is_truncated
    assert (exchange.outcome, exchange.ended_at) == (outcome, 6)
    assert [record for record in at.records() if isinstance(record, ExchangeClosed) and record.id == one.id]
    assert [gap.exchange for gap in at.gaps() if gap.run == "cut"] == [one.id]


async def test_gaps_wait_for_nobody_s_traffic(directory: Path) -> None:
    with open_recorder(directory) as at:
        await break_disk(at)
        at.recorder.record_gap("quiet", "tunnelled")
        at.disk.fails_with = None
        await until(lambda: "quiet" in {gap.run for gap in at.gaps()})


async def test_a_full_spool_is_a_gap_too(directory: Path) -> None:
    with open_recorder(directory, max_bytes=20_000, on_failure="refuse") as at:
        kept = [await a_call(at, f"run-{n}") for n in range(60)]
    assert kept[0]
    assert not kept[-1]
    assert kept == sorted(kept, reverse=True)


async def test_a_failed_sync_is_reported_to_the_next_run(directory: Path) -> None:
    with open_recorder(directory, durability="fsync") as at:
        assert await a_call(at, "before")
        at.disk.sync_fails_with = errno.EIO
        assert await a_call(at, "during"), "the policy is to go on"
        at.disk.sync_fails_with = None
        assert await a_call(at, "after")
    assert any("could not be synced" in gap.reason for gap in at.gaps() if gap.run in ("during", "after"))


async def test_a_sync_that_failed_in_the_midst_of_an_answer_is_not_made_good_by_the_next(directory: Path) -> None:
    with open_recorder(directory, durability="fsync", on_failure="refuse") as at:
        one = at.begin(run="during")
        one.record_end("request", 1)
        assert await one.wait_until_recorded()
        one.record_response_head(2, 200, "OK", "HTTP/1.1", ())
        at.disk.sync_fails_with = errno.EIO
        one.record_data("response", b"event", 3)
        await until(lambda: at.spool.fault_count > 0)
        at.disk.sync_fails_with = None
        one.record_end("response", 4)
        one.record_close(5, "completed")
        assert not await one.wait_until_recorded()
    assert [gap.exchange for gap in at.gaps() if gap.run == "during"] == [one.id]


async def test_memory_does_not_grow_while_nothing_can_be_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_OWED", 50)
    with open_recorder(directory) as at:
        open_ones = [at.begin(run=f"r{n}") for n in range(100)]
        await open_ones[-1].wait_until_recorded()
        await break_disk(at)
        for one in open_ones:
            one.record_data("request", b"x", 1)
            one.record_end("request", 2)
            one.record_close(3, "completed")
        for n in range(200):
            await a_call(at, f"during {n}")
        held = at.recorder.outbox
        assert len(held._owed_records) <= 50
        assert len(held._gaps) <= 51
        await mend_disk(at)
    # Nothing is lost in silence: what the last one counts came when no more names could be remembered.
    assert sum(gap.run.startswith("during") for gap in at.gaps()) < 50
    assert any(
        gap.run == ledger.UNKNOWN_RUN and "further runs" in gap.reason and "times" in gap.reason for gap in at.gaps()
    )


async def test_how_full_a_spool_is_makes_no_reason_of_its_own(directory: Path) -> None:
    with open_recorder(directory) as at:
        await break_disk(at)
        for full in range(3):
            at.recorder.outbox.record_gap("run", f"the spool is full ({full} of 9 bytes)")
        await mend_disk(at)
    assert [gap.reason for gap in at.gaps() if gap.run == "run"] == ["the spool is full (0 of 9 bytes) (3 times)"]
