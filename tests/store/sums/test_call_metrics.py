"""Metrics of calls for Prometheus, with a bounded number of series."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calls.derive import derive_call
from store.database.connection import Database
from store.feed.entries import CallStored
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.sums.call_metrics import BOUNDS, MOST_SERIES, CallMetrics
from tests.store.agents import Agent
from tests.store.running_store import PROFILES, open_store


def stored_call(**more: Any) -> CallStored:
    members: dict[str, Any] = {
        "run": "r",
        "at": 1,
        "id": "i",
        "kind": "model",
        "provider": "openai",
        "dialect": "openai_chat",
        "operation": "chat",
        "host": "api.openai.com",
        "model": "gpt-5",
        "model_returned": None,
        "fingerprint": None,
        "tools": (),
        "status": 200,
        "outcome": "completed",
        "is_complete": True,
        "is_error": False,
        "input_tokens": 100,
        "output_tokens": 10,
        "cached_tokens": None,
        "reasoning_tokens": 4,
        "cost_usd": "0.5",
        "actor": None,
        "first_byte": 300_000_000,
        "duration": 2_000_000_000,
    }
    return CallStored(**members | more)


def lines_of(calls: Sequence[CallStored]) -> list[str]:
    metrics = CallMetrics(Database("postgresql://nowhere"), 0)
    for call in calls:
        metrics.count(call)
    return list(metrics.lines())


def test_calls_tokens_costs_errors_and_latencies_are_counted() -> None:
    lines = lines_of([stored_call(), stored_call(is_error=True, cost_usd=None, duration=None)])
    labels = 'kind="model",provider="openai",model="gpt-5"'
    for line in (
        f"playhead_calls_total{{{labels}}} 2",
        f"playhead_call_errors_total{{{labels}}} 1",
        f"playhead_call_cost_usd_total{{{labels}}} 0.5",
        f'playhead_call_tokens_total{{{labels},type="input"}} 200',
        f'playhead_call_tokens_total{{{labels},type="reasoning"}} 8',
        f'playhead_call_first_byte_seconds_bucket{{{labels},le="0.25"}} 0',
        f'playhead_call_first_byte_seconds_bucket{{{labels},le="0.5"}} 2',
        f'playhead_call_duration_seconds_bucket{{{labels},le="+Inf"}} 1',
        f"playhead_call_duration_seconds_sum{{{labels}}} 2.000000",
        f"playhead_call_duration_seconds_count{{{labels}}} 1",
    ):
        assert line in lines


def test_any_number_of_models_makes_a_bounded_number_of_series() -> None:
    calls = [stored_call(model=f"model-{number}" + "x" * 1000) for number in range(10 * MOST_SERIES)]
    calls += [stored_call(kind="tool", provider=f"host-{number}.example.com") for number in range(1000)]
    lines = lines_of(calls)
    counts = [line for line in lines if line.startswith("playhead_calls_total")]
    assert len(counts) <= MOST_SERIES + 2
    assert sum(int(line.rpartition(" ")[2]) for line in counts) == len(calls), "none is lost"
    assert any('provider="other",model="other"' in line for line in counts)
    assert max(map(len, lines)) < 400
    assert len(lines) < (MOST_SERIES + 2) * (2 * len(BOUNDS) + 20)


def test_a_name_cannot_write_lines_of_its_own() -> None:
    lines = lines_of([stored_call(model='a"} 1\nevil_total 7\\')])
    assert not any(line.startswith("evil") for text in lines for line in text.splitlines())


async def test_the_api_shows_what_was_stored_since_the_start(tmp_path: Path, database: Database) -> None:
    made = [(one, derive_call(one, PROFILES)) for one in Agent(turns=2).run("a")]
    async with open_store(tmp_path / "spool", database) as running_store:
        for some in (made[:3], made[3:]):
            await BatchWriter(database).write_batch([DerivedExchange(*one) for one in some])
            await running_store.followers.wait_until_caught_up()
        lines = (await running_store.api.get("/metrics")).text.splitlines()
    assert 'playhead_calls_total{kind="model",provider="openai",model="gpt-5"} 2' in lines
    assert 'playhead_calls_total{kind="tool",provider="",model=""} 2' in lines
