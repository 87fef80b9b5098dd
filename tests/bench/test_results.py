"""Rounds become medians, pairs become ratios, and a promise is kept or missed."""

import json
import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import Row, Spread, cpu
from bench.results import Result, lagging, read, results, targets

COSTS = st.lists(st.floats(0.1, 1e5), min_size=1, max_size=9)


def rows(engine: str, *cpu_us: float, workload: str = "small", p50_ms: float = 1.0) -> list[Row]:
    return [
        Row(
            engine=engine,
            workload=workload,
            unit="call",
            round=number,
            n=100,
            per_s=50.0,
            cpu_us=used,
            p50_ms=p50_ms,
            p99_ms=9.0,
        )
        for number, used in enumerate(cpu_us)
    ]


def sum_up(*some: list[Row]) -> list[Result]:
    return list(results([row for each in some for row in each], {"cores": 2}))


def met_targets(*some: list[Row]) -> dict[str, tuple[float, bool]]:
    return {target.description: (target.found.median, target.is_met) for target in targets(sum_up(*some))}


@given(COSTS)
def test_a_result_is_its_rounds_median_within_their_range(costs: list[float]) -> None:
    (result,) = sum_up(rows("nginx", *costs))
    low, high = result.spread["cpu_us"]
    assert result.cpu_us is not None
    assert low <= result.cpu_us <= high
    assert (result.rounds, result.n) == (len(costs), 100 * len(costs))


def test_a_line_says_first_what_other_programs_read() -> None:
    (result,) = sum_up(rows("nginx", 1.0, 3.0, 2.0))
    line = json.loads(result.line())
    assert list(line)[:6] == ["engine", "workload", "unit", "cpu_us", "p50_ms", "p99_ms"]
    assert list(line.values())[:6] == ["nginx", "small", "call", 2.0, 1.0, 9.0]


def test_lines_are_read_as_they_were_printed_and_others_left_alone() -> None:
    printed = [*sum_up(rows("nginx", 1.0), rows("direct")), Result(engine="hoverfly", workload="small", unit="call")]
    assert read(["round 1", '{"machine": {}}', *(result.line() for result in printed)]) == printed


def test_ratios_are_those_of_rounds_and_not_of_medians() -> None:
    # The machine was three times slower in the second round, for both.
    ratio, met = met_targets(rows("nginx", 20.0, 60.0, 20.0), rows("lane-record", 30.0, 90.0, 30.0))[
        "CPU of lane-record over nginx, small"
    ]
    assert ratio == pytest.approx(1.5)
    assert met


def test_a_promise_of_more_is_missed_by_less() -> None:
    targets = met_targets(rows("lane-record", 100.0), rows("mitmproxy-bare", 1000.0))
    assert targets == {"CPU of mitmproxy-bare over lane-record, small": (10.0, False)}


def test_what_is_added_is_what_direct_did_not_take() -> None:
    targets = met_targets(
        rows("direct", 1.0, p50_ms=0.3, workload="small-paced"),
        rows("lane-record", 1.0, p50_ms=0.5, workload="small-paced"),
    )
    more, met = targets["ms that recording adds to a call's p50 at 100 a second"]
    assert more == pytest.approx(0.2)
    assert met


def test_a_run_without_a_peer_promises_nothing() -> None:
    assert met_targets(rows("lane-record", 100.0)) == {}


def test_a_process_s_cpu_is_counted_finer_than_in_ticks() -> None:
    before = time.process_time()
    used = cpu(os.getpid())
    assert before <= used <= time.process_time()


def test_spread_of_one_is_itself() -> None:
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0)


def test_figures_with_a_reservation_settle_nothing() -> None:
    peer, ours = sum_up(rows("nginx", 20.0), rows("lane-record", 30.0))
    assert not list(targets([replace(peer, why="it fell behind"), ours]))


@pytest.mark.parametrize(("came", "said"), [(2490.0, None), (1250.0, "1,250 of 2,500 events a second came through")])
def test_streams_that_fall_behind_are_said_to(came: float, said: str | None) -> None:
    reason = lagging(Result(engine="nginx", workload="sse50", unit="event", per_s=came))
    assert reason is said if said is None else reason is not None and reason.startswith(said)
