"""A proposed spec is valid, satisfied by the runs it is from, and notices what differs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.checking.checked_run import CheckedRun
from calls.checking.proposal import propose_spec
from calls.checking.spec import parse_spec
from calls.model import Json
from tests.calls.checking.runs import check, deleting_agent, step, tool, with_step
from tests.calls.strategies import json_values

RIGHT = deleting_agent()


def test_a_spec_of_one_run_accepts_it_and_notices_a_wrong_target() -> None:
    spec = propose_spec([RIGHT])
    assert check(RIGHT, spec).verdict == "pass"
    broken = [one.message for rule in check(deleting_agent("R-99"), spec).rules for one in rule.findings]
    assert broken == [
        "DELETE crm.example.com/records/R-99 is not an allowed target: DELETE crm.example.com/records/R-17"
    ]


def test_what_varies_between_two_runs_is_left_out() -> None:
    other = deleting_agent("R-20", user="Please delete record R-20.", name="s")
    spec = propose_spec([RIGHT, other])
    assert check(RIGHT, spec).verdict == check(other, spec).verdict == "pass"
    assert 'at = "$.force"\nis = { equals = true }' in spec
    assert 'at = "$.id"\nis = { type = "string" }' in spec


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        ((["a", "b"], ["a", "b"]), 'kind = "tools"\ntools = ["a", "b"]\n'),
        ((["a", "b"], ["b", "a"]), 'kind = "tools"\ntools = ["a", "b"]\norder = "any"'),
        ((["a"], ["a", "b"]), 'kind = "only"\ntools = ["a", "b"]'),
        (([], []), 'kind = "tools"\ntools = []'),
    ],
)
def test_the_order_of_tools_is_proposed_as_far_as_the_runs_agree(orders: tuple[list[str], ...], words: str) -> None:
    runs = [
        CheckedRun("r", (step(1, call={"tool_calls": tuple(tool(name, {}) for name in order)}),)) for order in orders
    ]
    assert words in propose_spec(runs)


def test_names_with_the_letters_of_patterns_mean_themselves() -> None:
    run = CheckedRun("r", (step(1, call={"tool_calls": (tool("a*[b]?", {"x.y": 1}),)}),))
    spec = propose_spec([run])
    assert check(run, spec).verdict == "pass"
    other = CheckedRun("r", (step(1, call={"tool_calls": (tool("a_b]c", {"x.y": 1}),)}),))
    assert check(other, spec).verdict == "fail"


def test_a_structured_answer_gets_a_schema() -> None:
    run = with_step(RIGHT, 5, call={"text": '{"id": "R-17", "done": true}'})
    spec = propose_spec([run])
    assert check(run, spec).verdict == "pass"
    assert check(with_step(RIGHT, 5, call={"text": '{"id": 17}'}), spec).verdict == "fail"


def test_a_prompt_with_a_secret_and_an_unknown_price_are_not_required_away() -> None:
    messages = [{"role": "user", "content": "PLAYHEAD_KABCDEFGHIJ"}]
    run = with_step(RIGHT, 1, usd=None, call={"request": {"messages": messages}})
    spec = propose_spec([run])
    assert "no-secret" not in spec
    assert "max_cost_usd" not in spec
    assert check(run, spec).verdict == "pass"


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=8), st.dictionaries(st.text(max_size=6), json_values, max_size=3)),
        max_size=3,
    ),
    st.one_of(st.none(), st.text(max_size=30)),
)
def test_every_proposed_spec_is_valid_and_satisfied(tools: list[tuple[str, Json]], text: str | None) -> None:
    calls = tuple(tool(name, arguments) for name, arguments in tools)
    runs = [
        CheckedRun(name, (step(1, call={"tool_calls": calls}), step(2, call={"text": text}))) for name in ("r", "s")
    ]
    for some in (runs[:1], runs):
        spec = propose_spec(some)
        assert parse_spec(spec)
        for run in some:
            assert [rule.findings for rule in check(run, spec).rules if rule.findings] == []
