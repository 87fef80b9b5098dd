"""When a run did what: lanes, thinking time, attempts, sums."""

import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.derive import derive_call
from calls.events import Gap
from calls.model import Call, Exchange
from store.timeline.facts import AttemptFacts, StepFacts
from store.timeline.from_exchanges import read_facts
from store.timeline.lanes import StepTime, assign_lanes
from store.timeline.timeline import MOST_ATTEMPTS, MOST_GAPS, Earlier, make_timeline
from tests.store.agents import Agent, interleave
from tests.store.running_store import PROFILES
from tests.store.samples import NOON

MS = 1_000_000
RUN = {"id": "run"}


def attempt(name: str, start: int, end: int | None, *, status: int | None = 200, first: int | None = 1) -> AttemptFacts:
    """An exchange between two times in milliseconds."""
    return AttemptFacts(
        exchange=name,
        started_at=NOON + start * MS,
        first_byte=None if first is None else first * MS,
        duration=None if end is None else (end - start) * MS,
        status=status,
        outcome="completed",
    )


def step(number: int, *attempts: AttemptFacts, **more: Any) -> StepFacts:
    facts: dict[str, Any] = {
        "call": f"call-{number}",
        "number": number,
        "kind": "model",
        "provider": "openai",
        "operation": "chat",
        "host": "api.openai.com",
        "method": "POST",
        "path": "/v1/chat/completions",
        "label": "gpt-5",
        "model": "gpt-5",
        "actor": None,
        "branch": None,
        "attempts": attempts,
        "tries": len(attempts),
    }
    return StepFacts(**(facts | more))


def test_thinking_is_the_time_without_any_request_in_flight() -> None:
    steps = [
        step(1, attempt("a", 10, 100)),
        step(2, attempt("b", 50, 300)),
        step(3, attempt("c", 120, 200)),
        step(4, attempt("d", 450, 500)),
    ]
    made = make_timeline(RUN, NOON, steps, [])
    assert [one["thinking_ms"] for one in made["steps"]] == [10, 0, 0, 150]
    assert made["thinking_ms"] == 160
    assert made["duration_ms"] == 500


def test_attempts_are_one_step_from_the_first_to_the_last() -> None:
    retried = step(1, attempt("a", 0, 10, status=429), attempt("b", 60, 100), complete=True)
    made = make_timeline(RUN, NOON, [retried, step(3, attempt("c", 101, 110))], [])
    one, after = made["steps"]
    assert (one["start_ms"], one["first_byte_ms"], one["end_ms"], one["status"]) == (0, 61, 100, 200)
    assert [(each["start_ms"], each["status"]) for each in one["attempts"]] == [(0, 429), (60, 200)]
    assert not one["failed"]
    assert after["thinking_ms"] == 1, "waiting for a retry is not thinking"


def test_the_first_failure_and_the_sums_are_said() -> None:
    steps = [
        step(1, attempt("a", 0, 10), cost=Decimal("0.5"), usage={"input_tokens": 10, "output_tokens": 2}),
        step(2, attempt("b", 10, 20, status=500), error="it broke\nbadly", cost=None),
        step(3, attempt("c", 20, None, status=None), cost=Decimal("0.25"), usage={"input_tokens": 1}),
    ]
    made = make_timeline(RUN, NOON, steps, [])
    assert made["failed"]["count"] == 2
    assert (made["failed"]["first"]["step"], made["failed"]["first"]["error"]) == (2, "it broke\nbadly")
    assert [(one["cost_so_far_usd"], one["tokens_so_far"]) for one in made["steps"]] == [
        (0.5, 12),
        (0.5, 12),
        (0.75, 13),
    ]
    assert made["steps"][2]["end_ms"] is None


def test_a_later_page_goes_on_from_the_sums_before_it() -> None:
    page = make_timeline(
        RUN,
        NOON,
        [step(7, attempt("a", 70, 80))],
        [],
        earlier=Earlier(steps=6, cost=Decimal(2), tokens=5),
        steps_left_out=3,
    )
    assert (page["steps"][0]["cost_so_far_usd"], page["steps"][0]["tokens_so_far"]) == (2, 5)
    assert page["steps"][0]["start_ms"] == 70
    assert (page["steps_before"], page["steps_left_out"], page["next"]) == (6, 3, 7)


def test_everything_is_bounded() -> None:
    polls = [attempt(str(number), number, number + 1) for number in range(MOST_ATTEMPTS + 10)]
    gaps = [Gap("run", NOON + number, "disk_full") for number in range(MOST_GAPS + 5)]
    made = make_timeline(RUN, NOON, [step(1, *polls, error="x" * 10_000, excerpt="y" * 10_000)], gaps)
    one = made["steps"][0]
    assert (len(one["attempts"]), one["attempts_left_out"]) == (MOST_ATTEMPTS, 10)
    assert one["attempts"][-1]["exchange"] == str(MOST_ATTEMPTS + 9)
    assert (len(made["gaps"]), made["gaps_left_out"]) == (MOST_GAPS, 5)
    assert len(one["excerpt"]) == 200


SPANS = st.lists(
    st.tuples(
        st.sampled_from([None, "planner", "worker"]),
        st.sampled_from([None, 1, 2, 3]),
        st.integers(0, 50),
        st.integers(0, 20),
    ),
    max_size=40,
)


@given(SPANS)
def test_lanes_never_overlap_and_have_every_call_once(drawn: Sequence[tuple[str | None, int | None, int, int]]) -> None:
    spans = [
        StepTime(str(number), actor, branch, start, start + size)
        for number, (actor, branch, start, size) in enumerate(drawn)
    ]
    plan = assign_lanes(spans)
    assert plan.places.keys() == {span.call for span in spans}
    assert set(plan.places.values()) == set(range(len(plan.lanes)))
    by_lane: dict[int, list[StepTime]] = {}
    for span in spans:
        by_lane.setdefault(plan.places[span.call], []).append(span)
        assert plan.lanes[plan.places[span.call]].actor == span.actor
    for members in by_lane.values():
        members.sort(key=lambda one: (one.start, one.end))
        for one, after in itertools.pairwise(members):
            assert one.end <= after.start
            assert one.start < after.start, "not even two moments are drawn at one place"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), min_size=1, max_size=30))
def test_steps_that_follow_one_another_share_one_lane(steps: Sequence[tuple[int, int]]) -> None:
    at, spans = 0, []
    for number, (pause, size) in enumerate(steps):
        spans.append(StepTime(str(number), None, 1 if number % 2 else None, at + pause, at + pause + size))
        at += pause + size
    assert len(assign_lanes(spans).lanes) == 1


def pairs(exchanges: Sequence[Exchange]) -> list[tuple[Exchange, Call]]:
    return [(one, derive_call(one, PROFILES)) for one in exchanges]


def no_cost(_: Exchange, __: Call) -> None:
    return None


def test_sub_agents_have_lanes_of_their_own_and_tools_are_on_that_of_their_model() -> None:
    agents = [Agent(turns=3, actor="planner").run("one"), Agent(turns=2, actor="worker", offset=3).run("other")]
    facts = read_facts(pairs([replace(each, run="team") for each in interleave(*agents)]), no_cost)
    made = make_timeline(RUN, NOON, facts.steps, [])
    assert sorted(one["call"] for one in made["steps"]) == sorted(each.id for agent in agents for each in agent)
    assert [lane["actor"] for lane in made["lanes"]] == ["planner", "worker"]
    for one in made["steps"]:
        assert made["lanes"][one["lane"]]["actor"] == one["actor"]
    alone = [one["call"] for one in made["steps"] if one["branch"] is None]
    assert alone == [agents[1][-1].id, agents[0][-1].id], "nothing tells whose the last tools are"


def test_an_exchange_is_an_attempt_of_exactly_one_step() -> None:
    made = Agent(turns=3, repeated=frozenset({1})).run()
    failed = replace(
        made[0],
        id=made[0].id[:-1] + ("0" if made[0].id[-1] != "0" else "1"),
        started_at=made[0].started_at - 2_000_000_000,
        response=replace(made[0].response, status=503) if made[0].response else None,
    )
    facts = read_facts(pairs([failed, *made]), no_cost)
    attempts = [one.exchange for each in facts.steps for one in each.attempts]
    assert sorted(attempts) == sorted(each.id for each in [failed, *made])
    assert facts.steps[0].tries == 2
    assert facts.steps[0].number == 1
    assert facts.steps[1].number == 3
