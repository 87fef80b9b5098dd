"""A replay with overrides, from its preparation to its report."""

import json
from typing import Any

import pytest

from calls.events import Gap
from calls.model import Exchange
from calls.overrides.overrides import BadOverride, read_overrides
from replay.answer import Answer
from replay.overrides.prepare import prepare_overrides
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from store.bundle.bundle import Bundle
from tests.calls.sockets import socket
from tests.replay.sessions import answer_request
from tests.replay.strategies import PROFILES, SECOND, chat, exchange, model_answer, ok, post, run_of

TOOL = "https://tools.example.com/v2/search"


def session(bundle: Bundle, *entries: dict[str, Any], **options: Any) -> Session:
    edited, editor = prepare_overrides(bundle, read_overrides(entries), PROFILES)
    return Session(
        "replay-1",
        build_recording(edited, PROFILES),
        ReplayOptions(edit_hook=editor, miss_hook=editor, **options),
        lambda _: None,
    )


def mark_of(answer: Answer) -> str:
    return dict(answer.headers)["Playhead"]


def two(first: Exchange | None = None) -> Bundle:
    return run_of(first or exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2))


async def test_an_edited_answer_says_so_and_is_counted() -> None:
    replay = session(two(), {"step": 2, "text": "C"})
    untouched, edited = await answer_request(replay, chat("a")), await answer_request(replay, chat("b"))
    assert mark_of(untouched).startswith("replayed")
    assert mark_of(edited) == 'edited; run="run-1"; step=2'
    assert json.loads(edited.body)["choices"][0]["message"]["content"] == "C"
    report: Any = replay.report()
    assert (report["served"], report["edited"], report["verdict"]) == (1, 1, "right")
    assert report["overrides"] == [{"override": 1, "where": "step 2", "what": "text", "steps": [2], "answered": 1}]


async def test_what_follows_from_an_edit_is_a_fork_s() -> None:
    replay = session(two(), {"step": 1, "text": "C"}, recording_name="bad.jsonl")
    assert "record the run again" in json.loads((await answer_request(replay, chat("x"))).body)["playhead"]["fix"]
    await answer_request(replay, chat("a"))
    fix = json.loads((await answer_request(replay, chat("and now, C?"))).body)["playhead"]["fix"]
    assert "playhead fork bad.jsonl --after-step 1 --override FILE -- CMD" in fix
    assert "record the run again" not in fix


@pytest.mark.parametrize(
    ("edited", "change"), [(1, {"text": "C"}), (2, {"tool_result": {"n": 9}}), (3, {"tool_result": {"n": 9}})]
)
async def test_the_fork_that_is_proposed_cuts_off_no_tool_beside_the_edited_step(edited: int, change: Any) -> None:
    tools = [post(f"https://tools.example.com/{name}", b'{"n":1}') for name in "ab"]
    run = run_of(
        exchange(chat("a"), model_answer("A")),
        *(exchange(tool, ok(b'{"n":1}'), number=number) for number, tool in enumerate(tools, 2)),
        exchange(chat("b"), model_answer("B"), number=4),
    )
    replay = session(run, {"step": edited, **change}, recording_name="bad.jsonl")
    for request in (chat("a"), *tools):
        await answer_request(replay, request)
    fix = json.loads((await answer_request(replay, chat("and now, C?"))).body)["playhead"]["fix"]
    assert "playhead fork bad.jsonl --after-step 3 --override FILE -- CMD" in fix


async def test_an_override_that_nothing_was_answered_by_makes_the_replay_not_right() -> None:
    replay = session(two(), {"step": 2, "text": "C"}, allow_unused=True)
    await answer_request(replay, chat("a"))
    report: Any = replay.report()
    assert (report["overrides"][0]["answered"], report["overrides_idle"], report["verdict"]) == (0, 1, "diverged")


async def test_an_edited_answer_is_streamed_to_whoever_asks_for_a_stream() -> None:
    replay = session(two(), {"step": 1, "text": "C"})
    edited = await answer_request(replay, chat("a", stream=True))
    assert mark_of(edited).startswith("edited")
    assert b'"content":"C"' in edited.body
    assert edited.body.endswith(b"data: [DONE]\n\n")


async def test_a_refusal_comes_first_and_the_answer_stays_for_who_asks_again() -> None:
    replay = session(two(), {"match": {"nth": 2}, "fault": {"status": 429, "times": 2, "retry_after": 3}})
    answers = [await answer_request(replay, chat(prompt)) for prompt in ("a", "b", "b", "b")]
    assert [answer.status for answer in answers] == [200, 429, 429, 200]
    assert dict(answers[1].headers)["Retry-After"] == "3"
    report: Any = replay.report()
    assert (report["served"], report["edited"], report["unused"], report["verdict"]) == (2, 2, 0, "right")


async def test_a_fault_nobody_asks_again_after_leaves_nothing_over() -> None:
    replay = session(run_of(exchange(chat("a"), model_answer("A"))), {"step": 1, "fault": {"cut": 10}})
    cut = await answer_request(replay, chat("a"))
    assert (cut.end, len(cut.body)) == ("cut", 10)
    assert replay.report()["verdict"] == "right"


async def test_equal_requests_keep_their_order_through_a_fault() -> None:
    run = run_of(exchange(chat("a"), model_answer("first")), exchange(chat("a"), model_answer("second"), number=2))
    replay = session(run, {"step": 1, "fault": {"status": 500}})
    answers = [await answer_request(replay, chat("a")) for _ in range(3)]
    assert [answer.status for answer in answers] == [500, 200, 200]
    assert [b"first" in answers[1].body, b"second" in answers[2].body] == [True, True]


async def test_a_timeout_says_nothing_until_its_time_is_over() -> None:
    replay = session(two(), {"step": 1, "fault": {"timeout": 1.5}})
    silence = await answer_request(replay, chat("a"))
    assert (silence.status, silence.end, silence.patience) == (0, "hold", SECOND * 3 // 2)
    assert (await answer_request(replay, chat("a"))).status == 200


async def test_a_slow_answer_comes_in_pieces_with_pauses() -> None:
    replay = session(two(), {"step": 1, "fault": {"slow": 0.5, "piece": 40}})
    slow = await answer_request(replay, chat("a"))
    assert [piece.at for piece in slow.pieces] == [SECOND // 2 * place for place in range(1, len(slow.pieces) + 1)]
    assert [len(piece.data) for piece in slow.pieces[:-1]] == [40] * (len(slow.pieces) - 1)
    assert slow.end_at == slow.pieces[-1].at
    assert json.loads(slow.body)["choices"][0]["message"]["content"] == "A"


async def test_edits_of_one_step_follow_one_another() -> None:
    replay = session(
        two(),
        {"step": 1, "text": "one two"},
        {"match": {"operation": "chat", "nth": 1}, "text": {"find": "two", "replace": "three"}},
        {"step": 1, "fault": {"status": 503}},
    )
    assert (await answer_request(replay, chat("a"))).status == 503
    assert b"one three" in (await answer_request(replay, chat("a"))).body
    assert [one["answered"] for one in replay.report()["overrides"]] == [1, 1, 1]  # type: ignore[union-attr, index, call-overload]


async def test_what_was_never_recorded_is_answered_by_a_match_of_its_own() -> None:
    replay = session(
        two(),
        {"match": {"host": "*.example.com", "path": "/v2/*"}, "answer": {"body": {"tickets": []}}},
        {"match": {"path": "/v3/*"}, "fault": {"status": 500}},
    )
    invented = await answer_request(replay, post(TOOL, b'{"q":1}'))
    assert (invented.status, invented.body, mark_of(invented)) == (200, b'{"tickets":[]}', 'edited; run="run-1"')
    again = [await answer_request(replay, post("https://tools.example.com/v3/x", b"{}")) for _ in range(2)]
    assert [answer.status for answer in again] == [500, 424]
    report: Any = replay.report()
    assert [one["answered"] for one in report["overrides"]] == [1, 1]
    assert (report["edited"], report["missed"]) == (2, 1)


async def test_a_model_is_answered_in_its_own_stream_also_where_nothing_was_recorded() -> None:
    answer = json.loads(model_answer("invented").body.data)
    replay = session(two(), {"match": {"model": "gpt-*", "operation": "chat"}, "answer": {"body": answer}})
    invented = await answer_request(replay, chat("never asked", stream=True))
    assert b'"content":"invented"' in invented.body
    assert invented.body.endswith(b"data: [DONE]\n\n")


async def test_a_whole_answer_mends_what_the_recording_lacks() -> None:
    run = run_of(exchange(chat("a"), None, outcome="server_closed"))
    gap = Gap("run-1", 1, "the disk was full", run.entries[0].exchange.id)
    lacking = Bundle(run=run.run, profiles=run.profiles, entries=run.entries, gaps=(gap,))
    replay = session(lacking, {"step": 1, "answer": {"body": json.loads(model_answer("A").body.data)}})
    assert (await answer_request(replay, chat("a"))).status == 200
    assert replay.report()["verdict"] == "right"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"step": 3, "text": "x"}, "override 1: there is no step 3: 2 steps are answered from the record"),
        ({"match": {"host": "x.example"}, "text": "x"}, "no recorded call fits host x.example; recorded are 1: POST"),
        ({"match": {"nth": 3}, "text": "x"}, "2 recorded calls fit nth 3; recorded are"),
        ({"match": {"tool": "refund"}, "arguments": {"patch": [{"op": "remove", "path": "/a"}]}}, "no recorded call fits"),
        ({"step": 1, "patch": [{"op": "remove", "path": "/x"}]}, "step 1 (POST api.openai.com/v1/chat/completions, chat)"),
    ],
)  # fmt: skip
def test_what_can_never_be_is_refused_before_the_replay_begins(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOverride) as caught:
        session(two(), entry)
    assert words in str(caught.value)


def test_an_edit_after_a_fault_of_its_step_is_refused() -> None:
    with pytest.raises(BadOverride, match="put the edit first"):
        session(two(), {"step": 1, "fault": {"status": 500}}, {"step": 1, "text": "x"})


async def test_a_tool_is_named_by_who_calls_it_and_by_who_asks_for_it() -> None:
    function = {"name": "refund", "arguments": "{}"}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    asks = ok(json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}).encode())
    run = run_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), asks, number=2))
    patch = [{"op": "add", "path": "/amount", "value": 5}]
    replay = session(run, {"match": {"tool": "refund"}, "arguments": {"patch": patch}})
    await answer_request(replay, chat("a"))
    called = json.loads((await answer_request(replay, chat("b"))).body)["choices"][0]["message"]["tool_calls"][0]
    assert called["function"]["arguments"] == '{"amount":5}'
    assert replay.report()["verdict"] == "right"


@pytest.mark.parametrize("change", [{"answer": {"status": 500}}, {"fault": {"status": 429}}])
def test_a_websocket_is_neither_edited_nor_made_to_fail(change: dict[str, Any]) -> None:
    with pytest.raises(BadOverride, match=r"step 1 .*it is a WebSocket"):
        session(run_of(socket(("response", {"hello": "you"}))), {"step": 1, **change})
