"""A model that became slower is told from one that is asked for more, from chance, and from too few calls."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.drift.latency_changes import judge_days
from store.query.stats.stats import DayLatencies
from store.sums.latency_classes import latency_class
from tests.store.running_store import PROFILES, RunningStore, import_bundle, open_store
from tests.store.samples import NOON, exchange

DAY: Final = 86_400_000_000_000
MS: Final = 1_000_000


def day(number: int, milliseconds: Sequence[float], tokens: int | None = 100) -> DayLatencies:
    """A day on which calls took so long."""
    classes = Counter(latency_class(round(value * MS)) for value in milliseconds)
    sums = None if tokens is None else tokens * len(milliseconds)
    return DayLatencies(number * DAY, "openai", "gpt-5", len(milliseconds), sums, sums, classes, classes)


def draws(median: float, count: int, seed: int) -> list[float]:
    """Latencies as they are: some take many times as long."""
    drawn = random.Random(seed)
    return [median * drawn.lognormvariate(0, 0.5) for _ in range(count)]


def test_a_model_that_takes_twice_as_long_is_slower_since_that_day() -> None:
    days = [day(number, draws(400, 20, number)) for number in range(4)]
    days += [day(number, draws(900, 20, number)) for number in (4, 5)]
    judged = judge_days(days, "first_byte")
    assert judged["verdict"] == "slower"
    assert judged["since"] == "1970-01-05T00:00:00.000000Z"
    assert (judged["before"]["calls"], judged["after"]["calls"]) == (80, 40)
    assert judged["before"]["median_ms"] == pytest.approx(400, rel=0.2)
    assert 1.8 < judged["ratio"] < 2.8
    assert judge_days([*days[4:], *(replace_day(one, 10) for one in days[:4])], "duration")["verdict"] == "faster"


def replace_day(one: DayLatencies, later: int) -> DayLatencies:
    return one._replace(day=one.day + later * DAY)


@pytest.mark.parametrize("calls", [3, 14])
def test_few_calls_have_no_verdict(calls: int) -> None:
    days = [day(0, [100.0] * calls), day(1, [100.0] * calls), day(2, [900.0] * calls), day(3, [900.0] * calls)]
    judged = judge_days(days, "duration")
    assert judged["verdict"] == "unknown"
    assert "fewer than 30 calls" in judged["why"]


def test_a_change_within_chance_is_none() -> None:
    """Of two hundred models that did not change none is called slower or faster, however they vary."""
    for seed in range(200):
        days = [day(number, draws(500, 15, 1000 * seed + number)) for number in range(8)]
        assert judge_days(days, "duration")["verdict"] == "same", seed


def test_what_grew_by_a_quarter_is_no_change() -> None:
    days = [day(number, draws(400 if number < 4 else 500, 400, number)) for number in range(8)]
    assert judge_days(days, "duration")["verdict"] == "same"


def test_longer_answers_are_not_slower_ones() -> None:
    days = [day(0, draws(400, 60, 1), tokens=100), day(1, draws(1200, 60, 2), tokens=300)]
    judged = judge_days(days, "duration")
    assert judged["verdict"] == "unknown"
    assert "300 tokens of the prompt on average, 100 before" in judged["why"]
    without_tokens = [day(0, draws(400, 60, 1), tokens=None), day(1, draws(1200, 60, 2), tokens=None)]
    assert judge_days(without_tokens, "duration")["verdict"] == "slower"


def test_changes_before_the_time_that_is_asked_for_are_left_out() -> None:
    days = [day(number, draws(400 if number < 2 else 900, 40, number)) for number in range(6)]
    assert judge_days(days, "duration", since=DAY)["verdict"] == "slower"
    assert judge_days(days, "duration", since=4 * DAY)["verdict"] == "same"


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


async def record_days(running_store: RunningStore, run: str, medians: Sequence[int], status: int = 200) -> None:
    entries = []
    for number, median in enumerate(medians):
        for call in range(35):
            request = {"model": run, "messages": [{"role": "user", "content": f"{number} {call}"}]}
            made = exchange(
                100 * number + call + 10_000 * len(run),
                run=run,
                url="https://api.openai.com/v1/chat/completions",
                at=NOON + number * DAY + call * 1_000_000_000,
                request=json.dumps(request).encode(),
                response=b'{"choices":[{"message":{"content":"ok"}}]}',
                status=status,
            )
            took = (median + call) * MS
            entries.append(Entry(exchange=replace(made, first_byte_at=took, ended_at=took + 3 * MS)))
    await import_bundle(
        running_store, b"".join(bundle_lines(Bundle(run={"id": run}, profiles=PROFILES.digest, entries=tuple(entries))))
    )


async def test_drift_says_which_models_became_slower(running_store: RunningStore) -> None:
    await record_days(running_store, "alias", [400, 410, 1000])
    await record_days(running_store, "steady", [400, 410, 405])
    await record_days(running_store, "refused-fast", [400, 410], status=429)
    found: dict[str, Any] = (await running_store.api.get("/v1/drift", params={"settled": "true"})).json()
    assert found["items"] == []
    by_model = {one["model_requested"]: one for one in found["latencies"]}
    assert list(by_model) == ["alias", "steady"], "what changed comes first, and errors have no latencies"
    alias, steady = by_model["alias"], by_model["steady"]
    assert (alias["first_byte"]["verdict"], alias["duration"]["verdict"]) == ("slower", "slower")
    assert alias["duration"]["since"] == "2026-11-23T00:00:00.000000Z"
    assert (alias["duration"]["before"]["calls"], alias["duration"]["after"]["calls"]) == (70, 35)
    assert steady["duration"] == {
        "verdict": "same",
        **dict.fromkeys(("why", "since", "ratio", "before", "after")),
    }
    only: dict[str, Any] = (await running_store.api.get("/v1/drift", params={"model": "steady"})).json()
    assert [one["model_requested"] for one in only["latencies"]] == ["steady"]
