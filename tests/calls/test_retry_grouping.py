"""Which exchanges of a run are one call: its tries, and the looks at its work."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.derive import derive_call
from calls.model import Call, Usage
from calls.retry_grouping import RETRY_WITHIN, Attempt, group_retries, merge_calls
from tests.calls.judging import PROFILES
from tests.calls.recorded import exchange
from tests.support.corpus import cassettes

SECOND = 1_000_000_000


def part(number: int, *, status: int | None = 200, after: float | None = None, **more: Any) -> Attempt:
    """An exchange of half a second that begins a second after the one before."""
    started = int((number if after is None else after) * SECOND)
    whole = {"key": "a", "outcome": "completed", "complete": status == 200, "ended_at": started + SECOND // 2}
    return Attempt(id=str(number), started_at=started, status=status, **{**whole, **more})


def group_ids(*parts: Attempt) -> list[tuple[str, int]]:
    """The calls: the ids of their exchanges, and how often they were tried."""
    return [("".join(call.ids), call.attempts) for call in group_retries(parts)]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_call_that_is_tried_again_is_one_call(status: int) -> None:
    assert group_ids(part(0, status=status), part(1, status=status), part(2), part(3)) == [("012", 3), ("3", 1)]


@pytest.mark.parametrize("status", [200, 204, 301, 400, 401, 404, 422, 424])
def test_what_no_sdk_tries_again_was_asked_twice(status: int) -> None:
    assert group_ids(part(0, status=status), part(1)) == [("0", 1), ("1", 1)]


@pytest.mark.parametrize("outcome", ["client_closed", "server_closed", "timed_out"])
def test_a_connection_that_broke_is_a_try(outcome: Any) -> None:
    assert group_ids(part(0, status=None, outcome=outcome), part(1)) == [("01", 2)]
    assert group_ids(part(0, outcome=outcome, complete=False), part(1)) == [("01", 2)]
    # …but one that broke after the answer was whole is an answer.
    assert group_ids(part(0, outcome=outcome, complete=True), part(1)) == [("0", 1), ("1", 1)]


def test_what_we_refused_was_not_tried() -> None:
    assert group_ids(part(0, status=None, outcome="refused"), part(1)) == [("0", 1), ("1", 1)]


def test_another_request_is_no_try() -> None:
    parts = (part(0, status=429), part(1, key="b"), part(2, status=429, key="b"), part(3), part(4, key="b"))
    assert group_ids(*parts) == [("03", 2), ("1", 1), ("24", 2)]


def test_a_try_comes_soon() -> None:
    late = 0.5 + RETRY_WITHIN / SECOND
    assert group_ids(part(0, status=429), part(1, after=late)) == [("01", 2)]
    assert group_ids(part(0, status=429), part(1, after=late + 0.001)) == [("0", 1), ("1", 1)]


@pytest.mark.parametrize("status", [None, 200])
def test_who_left_and_asks_again_much_later_has_decided_to(status: int | None) -> None:
    """A stream that an agent stopped, and the same question 17 s later, are two calls; after a break they are one."""
    left: dict[str, Any] = {"status": status, "outcome": "client_closed", "complete": False}
    broken: dict[str, Any] = left | {"outcome": "timed_out"}
    assert group_ids(part(0, **left), part(1, after=17)) == [("0", 1), ("1", 1)]
    assert group_ids(part(0, **left), part(1, after=9)) == [("01", 2)], "as an SDK retries after its timeout"
    assert group_ids(part(0, **broken), part(1, after=17)) == [("01", 2)]
    assert group_ids(part(0, **left | {"status": 429}), part(1, after=17)) == [("01", 2)], (
        "the server may have asked for it"
    )


def test_what_ran_at_the_same_time_is_a_hedge_and_stays_two() -> None:
    assert group_ids(part(0, status=500), part(1, after=0.4)) == [("0", 1), ("1", 1)]
    # A client knows of an end a moment before the worker has written it down.
    assert group_ids(part(0, status=500), part(1, after=0.46)) == [("01", 2)]


def test_each_of_two_that_failed_has_tries_of_its_own() -> None:
    parts = (part(0, status=500, after=0), part(1, status=500, after=0.1), part(2), part(3, after=2.1))
    assert group_ids(*parts) == [("02", 2), ("13", 2)]


def test_a_worker_that_died_with_it_may_not_have_seen_its_end() -> None:
    assert group_ids(part(0, status=None, outcome="server_closed", ended_at=None), part(1)) == [("01", 2)]


def background(number: int, **more: Any) -> Attempt:
    return part(number, complete=False, pending="resp_1", **more)


def look(number: int, *, done: bool = False, **more: Any) -> Attempt:
    return part(
        number, **{"key": "poll", "polls": "resp_1", "pending": None if done else "resp_1", "complete": done, **more}
    )


def test_work_in_the_background_is_one_call_with_all_looks_at_it() -> None:
    assert group_ids(background(0), look(1), look(2), look(3, done=True)) == [("0123", 1)]


def test_a_look_after_the_work_is_done_is_a_call_of_its_own() -> None:
    assert group_ids(background(0), look(1, done=True), look(2, done=True)) == [("01", 1), ("2", 1)]


def test_a_look_that_fails_is_still_one() -> None:
    parts = (background(0), look(1, status=503, pending=None), look(2), look(3, done=True))
    assert group_ids(*parts) == [("0123", 1)]


def test_a_look_that_finds_nothing_is_the_last() -> None:
    assert group_ids(background(0), look(1, status=404, pending=None), look(2)) == [("01", 1), ("2", 1)]


def test_looks_at_work_that_others_began_are_one_call() -> None:
    assert group_ids(look(0), look(1), look(2, done=True)) == [("012", 1)]


def test_work_is_begun_with_a_second_try_and_looked_at_in_turn() -> None:
    parts = (part(0, status=429), background(1), look(2), part(3, key="other"), look(4, done=True))
    assert group_ids(*parts) == [("0124", 2), ("3", 1)]


def test_a_run_that_goes_on_with_its_tools_is_another_call_of_the_same_work() -> None:
    outputs = background(2, key="outputs")
    assert group_ids(background(0), look(1, done=True), outputs, look(3, done=True)) == [("01", 1), ("23", 1)]


parts = st.builds(
    part,
    st.integers(0, 9),
    status=st.sampled_from([200, 429, 500, 404, None]),
    after=st.floats(0, 200),
    key=st.sampled_from("ab"),
    outcome=st.sampled_from(["completed", "client_closed", "refused"]),
    polls=st.sampled_from([None, None, "x", "y"]),
    pending=st.sampled_from([None, None, "x", "y"]),
    ended_at=st.none() | st.integers(0, 300 * SECOND),
)


@given(st.lists(parts))
def test_every_exchange_is_in_one_call_in_its_order_and_calls_are_in_theirs(drawn: list[Attempt]) -> None:
    ordered = sorted(drawn, key=lambda one: one.started_at)
    calls = group_retries(ordered)
    places = [[ordered.index(one) for one in call.parts] for call in calls]
    assert sorted(id(one) for call in calls for one in call.parts) == sorted(map(id, ordered))
    assert places == sorted(places) or len(set(ordered)) < len(ordered)
    assert all(1 <= call.attempts <= len(call.parts) for call in calls)


def call(number: int, **more: Any) -> Call:
    whole = {"kind": "model", "provider": "openai", "dialect": "openai_responses", "operation": "chat", "key": "k"}
    return Call(exchanges=(str(number),), profile="p/1", **{**whole, **more})


def test_a_call_is_asked_as_its_first_exchange_and_answered_as_its_last() -> None:
    begun = call(0, model_requested="m", request={"input": "hi"}, tool_results=({"id": "c"},), pending="resp_1")
    done = call(1, operation="poll", key="poll", polls="resp_1", model_returned="m-1", text="Hi", complete=True)
    whole = merge_calls([begun, call(9, polls="resp_1", pending="resp_1"), done])
    assert whole.exchanges == ("0", "9", "1")
    assert (whole.operation, whole.key, whole.model_requested, whole.request) == ("chat", "k", "m", {"input": "hi"})
    assert (whole.model_returned, whole.text, whole.complete, whole.pending) == ("m-1", "Hi", True, None)
    assert (whole.tool_results, whole.polls) == (({"id": "c"},), None)


def test_a_try_brings_its_tools_results_itself() -> None:
    results = ({"id": "c"},)
    tries = [call(0, tool_results=results), call(1, tool_results=results, usage=Usage(input_tokens=1))]
    assert merge_calls(tries).tool_results == results
    assert merge_calls(tries[:1]) == tries[0]


def recorded_parts(name: str, recorded: Sequence[Any]) -> list[tuple[Attempt, Call]]:
    found = []
    for number, one in enumerate(recorded):
        made = derive_call(exchange(one, name), PROFILES)
        of = part(
            number, status=one.status, key=made.key, complete=made.complete, polls=made.polls, pending=made.pending
        )
        found.append((of, made))
    return found


def test_every_recorded_run_of_an_assistant_is_one_call_with_its_looks() -> None:
    seen = 0
    for cassette in cassettes():
        found = recorded_parts(cassette.name, cassette.exchanges)
        calls = {one.id: made for one, made in found}
        for folded_one in group_retries(one for one, _ in found):
            whole = merge_calls([calls[name] for name in folded_one.ids])
            if whole.dialect == "openai_assistants" and whole.operation == "invoke_agent":
                seen += 1
                assert whole.complete, cassette.name
                assert whole.finish_reason in ("completed", "requires_action"), cassette.name
            assert whole.operation != "poll", cassette.name
    assert seen == 21
