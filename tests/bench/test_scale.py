"""The rows that the tables are filled with are what ingest would write, and every query of the benchmark is one."""

import pytest

from bench.scale import TARGETS_MS, ingest_ratios, options
from bench.scale_queries import ABSENT, details, queries
from bench.scale_rows import CASE, DAY, case_of, run_exchanges, run_name
from calls.derive import derive_call
from store.active_profiles import load_profiles

NOW = 1_795_262_400 * 10**9


def test_a_run_s_calls_are_those_that_its_exchanges_are_derived_to() -> None:
    profiles = load_profiles(None)
    for one in list(run_exchanges(3, NOW))[:6]:
        derived = derive_call(one.exchange, profiles)
        assert one.call is not None
        assert (derived.kind, derived.model_requested, derived.usage) == (
            one.call.kind,
            one.call.model_requested,
            one.call.usage,
        )


@pytest.mark.slow
def test_runs_of_a_template_differ_in_their_bodies_keys_and_ids() -> None:
    first, second = (list(run_exchanges(number, NOW)) for number in (0, 50))
    assert len(first) == len(second)
    assert CASE.encode() not in first[0].exchange.request.body.data or case_of(0) == CASE
    assert case_of(50).encode() in second[0].exchange.request.body.data
    assert {one.exchange.id for one in first}.isdisjoint(one.exchange.id for one in second)
    assert {one.exchange.run for one in second} == {run_name(50)}


def test_every_query_has_a_name_of_its_own_and_a_target() -> None:
    found = list(queries(1000, NOW - DAY))
    assert len({(one.group, one.name) for one in found}) == len(found)
    assert all(one.target().startswith("/v1/") for one in found)
    assert any(ABSENT in one.target() for one in found)
    assert {one.group for one in (*found, *details("run", "call"))} == TARGETS_MS.keys()


def test_ingest_is_compared_by_medians() -> None:
    before = [{"workload": "small", "per_s": rate, "cpu_us": 100.0} for rate in (90.0, 100.0, 200.0)]
    after = [{"workload": "small", "per_s": rate, "cpu_us": 110.0} for rate in (50.0, 95.0, 95.0)]
    assert ingest_ratios(before, after) == {"small per_s": 0.95, "small cpu_us": 1.1}


def test_by_default_it_is_a_look() -> None:
    assert options().parse_args([]).calls <= 20_000
