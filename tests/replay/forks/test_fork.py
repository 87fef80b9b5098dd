"""A fork, from its preparation to its report."""

import json
from dataclasses import replace
from typing import Any

import pytest

from calls.events import EffectBatch
from replay.forks.fork import BadFork
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.replays import ReplaySource, UnusableRecording
from replay.requested_options import source_as_requested
from replay.session import Session
from store.bundle.bundle import Bundle
from tests.calls.sockets import socket
from tests.replay.sessions import answer_request
from tests.replay.strategies import PROFILES, SECOND, chat, exchange, model_answer, ok, post, run_of

TOOL = "https://tickets.example.com/v2/notes"


def base() -> Bundle:
    """A run that calls a model, a tool, and the model again."""
    return run_of(
        exchange(chat("a"), model_answer("A")),
        exchange(post(TOOL, b'{"n":1}'), ok(b'{"id":1}'), number=2),
        exchange(chat("b"), model_answer("B"), number=3),
    )


def fork(bundle: Bundle, at: int | None, *overrides: dict[str, Any], **more: Any) -> Session:
    requested = {"overrides": list(overrides), "fork": {"at": at, **more}}
    source = source_as_requested(
        ReplaySource(replay="child", bundle=bundle), requested, ReplayOptions(on_miss="live"), PROFILES, str
    )
    assert source.options is not None
    ready = build_recording(source.bundle, PROFILES, until_step=source.options.until_step)
    return Session("child", ready, source.options, lambda _: None)


async def test_the_prefix_comes_from_the_record_and_becomes_part_of_the_child() -> None:
    child = fork(base(), 1)
    answer = await answer_request(child, chat("a"))
    assert (dict(answer.headers)["Playhead"].partition(";")[0], answer.recorded_outcome) == ("replayed", "completed")
    assert await child.answer(chat("b")) is None
    report: Any = child.report()
    assert (report["served"], report["live"], report["unused"], report["verdict"]) == (1, 1, 0, "right")
    assert (report["fork"]["parent"], report["fork"]["forked_at"]) == ("run-1", 1)


@pytest.mark.parametrize(
    ("at", "hands_back", "verdict"),
    [
        (None, b"call_0123456789", "right"),
        (None, b"call_of_another", "diverged"),
        (2, b"call_0123456789", "diverged"),
    ],
)
async def test_a_resumed_command_with_a_checkpoint_need_not_ask_for_the_prefix_again(
    at: int | None, hands_back: bytes, verdict: str
) -> None:
    call = b'{"id":"call_0123456789","type":"function","function":{"name":"note","arguments":"{}"}}'
    message = b'{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","tool_calls":[%s]}}' % call
    asks = ok(b'{"id":"1","object":"chat.completion","model":"m","choices":[%s]}' % message)
    child = fork(run_of(exchange(chat("a"), asks), exchange(chat("b"), model_answer("B"), number=2)), at, allow=["*"])
    assert await child.answer(post(TOOL, b'{"n":1}')) is None
    result = b'{"role":"tool","tool_call_id":"%s","content":"x"}' % hands_back
    body = b'{"model":"m","messages":[{"role":"user","content":"a"},%s]}' % result
    assert await child.answer(post("https://api.openai.com/v1/chat/completions", body)) is None
    report: Any = child.report()
    assert (report["unused"], report["live"], report["verdict"]) == (2, 2, verdict)
    assert report["fork"]["from_checkpoint"] is (verdict == "right")


async def test_a_resumed_command_that_skips_a_step_in_the_middle_has_diverged() -> None:
    child = fork(base(), None, allow=["*"])
    await answer_request(child, chat("a"))
    await answer_request(child, chat("b"))
    report: Any = child.report()
    assert (report["unused"], report["verdict"], report["fork"]["from_checkpoint"]) == (1, "diverged", False)


async def test_what_may_change_something_is_refused_and_not_counted_as_a_miss() -> None:
    child = fork(base(), 1)
    await answer_request(child, chat("a"))
    refused = await answer_request(child, post(TOOL, b'{"n":1}'))
    assert (refused.status, refused.recorded_outcome, dict(refused.headers)["x-should-retry"]) == (
        403,
        "refused",
        "false",
    )
    answer = json.loads(refused.body)
    assert "--side-effects 'POST tickets.example.com=allow'" in answer["error"]["message"]
    report: Any = child.report()
    assert (report["missed"], report["fork"]["blocked"], report["verdict"]) == (0, 1, "right")
    assert report["fork"]["blocked_calls"][0]["asked"] == f"POST {TOOL}"


async def test_what_is_allowed_goes_live() -> None:
    child = fork(base(), 1, allow=["POST tickets.example.com"])
    assert await child.answer(post(TOOL, b'{"n":1}')) is None


async def test_a_tool_is_answered_by_what_came_later_once() -> None:
    child = fork(base(), 1, effects=["serve-recorded"])
    assert (await answer_request(child, post(TOOL, b'{"n":1}'))).body == b'{"id":1}'
    assert (await answer_request(child, post(TOOL, b'{"n":1}'))).status == 403
    assert (await answer_request(child, post(TOOL, b'{"n":2}'))).status == 403
    report: Any = child.report()
    assert (report["fork"]["later"], report["fork"]["blocked"]) == (1, 2)


async def test_a_prefix_that_was_not_followed_is_reported() -> None:
    child = fork(base(), 3)
    await answer_request(child, chat("a"))
    report: Any = child.report()
    assert (report["unused"], report["verdict"]) == (2, "diverged")


async def test_after_an_edit_the_rest_of_the_prefix_may_be_left() -> None:
    child = fork(base(), 3, {"step": 1, "text": "C"})
    await answer_request(child, chat("a"))
    assert await child.answer(chat("something else")) is None
    assert child.report()["verdict"] == "right"


async def test_an_override_that_was_not_met_makes_a_fork_not_right() -> None:
    child = fork(base(), 3, {"step": 3, "text": "C"})
    await answer_request(child, chat("a"))
    assert child.report()["verdict"] == "diverged"


async def test_what_the_prefix_lacks_never_slips_out() -> None:
    child = fork(run_of(exchange(chat("a"), None, outcome="server_closed", ended_at=None)), 1)
    assert (await answer_request(child, chat("a"))).status == 424


async def test_an_invented_answer_serves_the_live_part() -> None:
    child = fork(base(), 1, {"match": {"host": "tickets.example.com"}, "answer": {"body": {"id": 7}}})
    answer = await answer_request(child, post(TOOL, b'{"n":1}'))
    assert (answer.body, answer.recorded_outcome) == (b'{"id":7}', "completed")


async def test_a_resume_asks_again_for_what_was_under_way() -> None:
    cut = exchange(chat("b"), ok(b'{"id":'), number=2, outcome="client_closed")
    child = fork(run_of(exchange(chat("a"), model_answer("A")), cut), None)
    assert (await answer_request(child, chat("a"))).status == 200
    assert await child.answer(chat("b")) is None
    report: Any = child.report()
    assert report["fork"]["forked_at"] == 1


async def test_a_report_tells_what_was_wished_for() -> None:
    requested: Any = fork(base(), 2, {"step": 1, "text": "C"}, allow=["x"]).report()["requested"]
    assert requested == {"overrides": [{"step": 1, "text": "C"}], "fork": {"at": 2, "allow": ["x"]}}


def test_there_is_no_fork_beyond_the_end() -> None:
    with pytest.raises(UnusableRecording, match="run run-1 ends at step 3, so it cannot be forked at step 4") as caught:
        fork(base(), 4)
    assert isinstance(caught.value.__cause__, BadFork)


def test_an_override_beyond_the_prefix_is_refused() -> None:
    with pytest.raises(UnusableRecording, match="override 1: there is no step 3: 2 steps are answered from the record"):
        fork(base(), 2, {"step": 3, "text": "x"})


async def test_a_fork_that_rested_goes_on_where_it_was_with_its_edits_and_its_policy() -> None:
    notes = (exchange(post(TOOL, b'{"n":1}'), ok(b'{"id":%d}' % n), number=n) for n in (2, 3))
    noted = run_of(exchange(chat("a"), model_answer("A")), *notes)

    def make_session() -> Session:
        return fork(noted, 1, {"step": 1, "fault": {"status": 500}}, effects=["serve-recorded"])

    child, later = make_session(), make_session()
    assert (await answer_request(child, chat("a"))).status == 500
    assert (await answer_request(child, post(TOOL, b'{"n":1}'))).body == b'{"id":2}'
    later.resume(child.suspend())
    assert later.report() == child.report()
    assert (await answer_request(later, chat("a"))).body == model_answer("A").body.data
    assert (await answer_request(later, post(TOOL, b'{"n":1}'))).body == b'{"id":3}'
    report: Any = later.report()
    assert (report["served"], report["edited"], report["fork"]["later"]) == (3, 1, 2)


def test_a_fork_behind_a_websocket_is_refused_when_it_is_made() -> None:
    spoken = run_of(
        exchange(chat("a"), model_answer("A")), socket(("response", {"hello": "you"}), started_at=9 * SECOND)
    )
    fork(spoken, 1)
    with pytest.raises(UnusableRecording, match=r"step 2 of run run-1 is a WebSocket.*fork it at step 1 or earlier"):
        fork(spoken, 2)


async def test_a_run_without_calls_goes_on_by_its_effects_alone() -> None:
    asked = b'[{"kind":"people.question","results":["Refund?"]}]'
    effects = EffectBatch("run-1", "01900000-0000-7000-8000-000000000000", 1, "people", 0, 1, asked)
    child = fork(replace(run_of(), effects=(effects,)), 0)
    assert child.report()["verdict"] == "right"
    assert fork(run_of(), 0).report()["verdict"] == "unknown"
