"""How a spool is drained: when records may be deleted, and what long or large exchanges cost."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from calls.events import Data, Gap, MessageEnded, Record, RequestStarted, encode_records
from calls.model import Exchange
from store.ingest.drain import Drain
from store.ingest.open_exchange_files import OpenExchangeFiles
from store.spool import Position, Spool
from tests.store import exchanges as made
from tests.store.samples import NOON, uuid7
from tests.support.exchange_events import exchange_events

PLENTY = 1 << 30


def turns(number: int) -> list[Exchange]:
    return [
        replace(each, id=uuid7(NOON + n, n), started_at=NOON + n) for n, each in enumerate(made.conversation(number))
    ]


async def write_records(spool: Spool, records: Iterable[Record]) -> None:
    last = 0
    for record in records:
        last = spool.append(encode_records(record))
    await spool.wait_until_durable(last)


def drain(directory: Path) -> Drain:
    return Drain(directory, now=lambda: NOON)


def segments(directory: Path) -> int:
    return len(list(directory.glob("*.seg")))


def drain_once(one: Drain, budget: int = PLENTY) -> list[Exchange]:
    """Drain the spool once, store and commit."""
    found = one.gather(budget)
    one.mark_stored()
    one.commit()
    return found.exchanges


async def test_it_does_not_matter_which_records_arrived_together(tmp_path: Path) -> None:
    """A payload has records of several exchanges, gaps among them, and some after an exchange's end."""
    for seed in range(40):
        dice = random.Random(seed)
        sent = turns(4)
        queues: list[list[Record]] = [list(exchange_events(exchange)) for exchange in sent]
        queues[0].append(queues[0][-1])  # closed twice
        queues.append([Gap("run", NOON, "one"), Gap("run", NOON, "two")])
        records: list[Record] = []
        while any(queues):
            records.append(dice.choice([queue for queue in queues if queue]).pop(0))
        with Spool(tmp_path / str(seed)) as spool:
            last = 0
            while records:
                together = [records.pop(0) for _ in range(min(dice.randrange(1, 9), len(records)))]
                last = spool.append(encode_records(together))
            await spool.wait_until_durable(last)
            found = drain(tmp_path / str(seed)).gather(PLENTY)
        assert {one.id: one for one in found.exchanges} == {one.id: one for one in sent}
        assert [gap.reason for gap in found.gaps] == ["one", "two"]


async def test_a_crash_at_any_time_loses_no_exchange(tmp_path: Path) -> None:
    """With interleaved exchanges and passes that are not committed, a new store server finds everything that is not stored."""
    for seed in range(40):
        dice = random.Random(seed)
        sent = turns(6)
        queues = [list(exchange_events(exchange)) for exchange in sent]
        directory = tmp_path / str(seed)
        stored: dict[str, Exchange] = {}
        with Spool(directory, segment_bytes=4096) as spool:
            one = drain(directory)
            while any(queues):
                queue = dice.choice([queue for queue in queues if queue])
                await write_records(spool, [queue.pop(0)])
                if dice.random() < 0.4:
                    found = one.gather(dice.choice([0, 3000, PLENTY]))
                    assert not found.gaps
                    if dice.random() < 0.5:
                        one.reader.close()
                        one = drain(directory)  # the store server died before it stored what it found
                        continue
                    stored |= {each.id: each for each in found.exchanges}
                    one.mark_stored()
                    if dice.random() < 0.7:
                        one.commit()
                    if dice.random() < 0.3:
                        one.reader.close()
                        one = drain(directory)  # or after
            stored |= {each.id: each for each in one.gather(PLENTY).exchanges}
            one.reader.close()
        assert stored == {each.id: each for each in sent}, seed


async def test_a_long_exchange_does_not_hold_up_the_deletion_of_segments(tmp_path: Path) -> None:
    long, *others = turns(30)
    begun, rest = list(exchange_events(long))[:4], list(exchange_events(long))[4:]
    with Spool(tmp_path, segment_bytes=8192) as spool:
        one = drain(tmp_path)
        await write_records(spool, begun)
        for other in others:
            await write_records(spool, exchange_events(other))
            assert drain_once(one) == [other]
        assert segments(tmp_path) <= 4
        assert [path.stem for path in (tmp_path / "open").iterdir()] == [long.id]
        await write_records(spool, rest)
        assert drain_once(one) == [long]
        assert list((tmp_path / "open").iterdir()) == []


async def test_a_parked_exchange_outlives_the_store_server(tmp_path: Path) -> None:
    exchange = turns(1)[0]
    events = list(exchange_events(exchange))
    with Spool(tmp_path) as spool:
        for n, event in enumerate(events):
            await write_records(spool, [event])
            one = drain(tmp_path)
            found = drain_once(one, budget=0)
            one.reader.close()
            assert found == ([exchange] if n == len(events) - 1 else [])
            assert one.open_weight == 0


async def test_a_store_server_that_dies_between_database_and_cursor_stores_a_parked_exchange_again(
    tmp_path: Path,
) -> None:
    exchange = turns(1)[0]
    events = list(exchange_events(exchange))
    with Spool(tmp_path) as spool:
        one = drain(tmp_path)
        await write_records(spool, events[:-1])
        assert drain_once(one, budget=0) == []
        await write_records(spool, events[-1:])
        assert one.gather(0).exchanges == [exchange]
        one.reader.close()
        again = drain(tmp_path)
        found = again.gather(PLENTY)
        assert (found.exchanges, found.gaps) == ([exchange], [])
        again.mark_stored()
        again.commit()
        assert list((tmp_path / "open").iterdir()) == []
        again.reader.close()
        assert drain(tmp_path).gather(PLENTY).exchanges == []


async def test_open_exchanges_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    budget = 50_000
    with Spool(tmp_path) as spool:
        one = drain(tmp_path)
        for n in range(20):
            head = next(iter(exchange_events(replace(turns(1)[0], id=uuid7(NOON, n)))))
            assert isinstance(head, RequestStarted)
            await write_records(spool, [head, *(Data(head.id, at, "request", b"x" * 4000) for at in range(5))])
            assert one.gather(budget).exchanges == []
            assert one.open_weight <= budget
        found = one.finish()
        assert [len(each.request.body.data) for each in found.exchanges] == [20_000] * 20
        assert len(found.gaps) == 20


async def test_a_file_of_parked_events_that_was_torn_is_mended(tmp_path: Path) -> None:
    exchange = turns(1)[0]
    events = list(exchange_events(exchange))
    parked = OpenExchangeFiles(tmp_path)
    parked.append(exchange.id, events[:2], Position(1, 10))
    whole = (tmp_path / f"{exchange.id}.parked").stat().st_size
    parked.append(exchange.id, events[2:4], Position(1, 20))
    path = tmp_path / f"{exchange.id}.parked"
    for size in range(whole, path.stat().st_size):
        path.write_bytes(path.read_bytes()[:size])
        found = OpenExchangeFiles.recover(tmp_path)
        assert found.complete_position(exchange.id) == Position(1, 10)
        assert list(found.events(exchange.id)) == events[:2]
        found.append(exchange.id, events[2:4], Position(1, 20))
        assert list(found.events(exchange.id)) == events[:4]


async def test_a_file_of_parked_events_that_is_damaged_is_a_gap_and_left_beside(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        await write_records(spool, list(exchange_events(turns(1)[0]))[:3])
        one = drain(tmp_path)
        assert drain_once(one, budget=0) == []
        path = next((tmp_path / "open").iterdir())
        path.write_bytes(path.read_bytes().replace(b"req", b"\xc1\xc1\xc1", 1))
        found = drain(tmp_path).gather(PLENTY)
        assert "parked events" in found.gaps[0].reason
        assert path.with_suffix(".damaged").exists()


async def test_an_exchange_with_a_name_that_is_a_path_is_not_one(tmp_path: Path) -> None:
    head = RequestStarted("../../etc/passwd", "run", NOON, "GET", "https://a.example/", "HTTP/1.1", ())
    with Spool(tmp_path) as spool:
        await write_records(spool, [head])
        found = drain(tmp_path).gather(0)
    assert found.exchanges == []
    assert "invalid exchange id" in found.gaps[0].reason
    assert not (tmp_path / "open").exists()


async def test_impossible_events_are_reported(tmp_path: Path) -> None:
    exchange = turns(1)[0]
    *events, closed = exchange_events(exchange)
    with Spool(tmp_path) as spool:
        await write_records(spool, [*events, Data(exchange.id, 9, "response", b"after the end"), closed])
        found = drain(tmp_path).gather(PLENTY)
    assert found.exchanges == [exchange]
    (gap,) = found.gaps
    assert (gap.run, gap.exchange) == (exchange.run, exchange.id)
    assert "response data when complete" in gap.reason


@pytest.mark.parametrize("over", [False, True], ids=["in its midst", "after its end"])
async def test_an_answer_that_the_worker_itself_broke_off_is_a_gap(tmp_path: Path, over: bool) -> None:
    exchange = replace(turns(1)[0], outcome="refused", error="the worker stopped before the exchange was over")
    *events, closed = exchange_events(exchange)
    assert exchange.response
    end = [MessageEnded(exchange.id, 9, "response", exchange.response.body.size)] if over else []
    with Spool(tmp_path) as spool:
        await write_records(spool, [*events, *end, closed])
        found = drain(tmp_path).gather(PLENTY)
    assert found.exchanges == [exchange]
    gaps = [(gap.run, gap.exchange, gap.reason) for gap in found.gaps]
    assert gaps == ([] if over else [(exchange.run, exchange.id, exchange.error)])
