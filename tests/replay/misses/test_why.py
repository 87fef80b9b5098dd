"""The explanation of a replay that diverged, as text."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from calls.derive import deriver
from calls.model import Exchange, Request
from proxy.cli import playhead
from replay.forks.generation import FAILED, generation_bundle, kept_exchanges, recording_flaw
from replay.misses.why import explanation_lines
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.report import interrupted_report, report_lines
from replay.session import Session
from store.bundle.bundle import bundle_lines, read_bundle
from store.datadir import open_data_dir
from tests.replay.strategies import (
    PROFILES,
    chat,
    exchange,
    failed_in_a_stream,
    model_answer,
    ok,
    run_of,
    said_in_a_stream,
)


async def report_of(*prompts: str, **options: Any) -> dict[str, Any]:
    """The report of a replay of "a" and "b" with these requests."""
    run = run_of(exchange(chat("a"), model_answer("A")), exchange(chat("b", user="ann"), model_answer("B"), number=2))
    session = Session(
        "replay-1",
        build_recording(run, PROFILES),
        ReplayOptions(recording_name="ticket.jsonl", **options),
        lambda _: None,
    )
    for prompt in prompts:
        await session.answer(chat(prompt, user="bob"))
    report: dict[str, Any] = json.loads(json.dumps(session.report()))
    return report


async def test_each_miss_shows_both_sides_and_every_remedy() -> None:
    lines = list(explanation_lines(await report_of("a", "c")))
    assert lines[0] == "replay replay-1 of run-1: diverged, 1 missed, 0 live, 1 unused"
    text = "\n".join(lines)
    assert "request 2, no_match: POST https://api.openai.com/v1/chat/completions" in text
    assert "    /body/messages/0/content\n      - 'b'\n      + 'c'\n" in text
    assert "  or: record only what is new: playhead replay ticket.jsonl --on-miss record -- CMD" in text
    assert "unused: 1 recorded calls that were not requested\n  step 2, POST" in text


async def test_one_request_can_be_asked_for() -> None:
    report = await report_of("a", "c", "d")
    assert next(explanation_lines(report, 3)).startswith("request 3, no_match")
    assert "was answered from the recording" in next(explanation_lines(report, 1))


async def test_a_right_replay_has_nothing_to_explain_but_its_drift() -> None:
    lines = list(explanation_lines(await report_of("a", "b")))
    assert lines[0] == "replay replay-1 of run-1: right: 2 answered from the recording, none missed"
    assert "drift: 2 answered requests" in "".join(lines[1:])


async def test_what_nobody_can_know_is_not_explained_away() -> None:
    assert "no request reached the proxy" in next(explanation_lines(await report_of(allow_unused=True)))
    report = interrupted_report(await report_of("a", "b"))
    assert report["verdict"] == "unknown"
    assert "its proxy ended before the command did" in next(explanation_lines(report))


def run_why(*arguments: str) -> Result:
    return CliRunner().invoke(playhead, ["why", *arguments])


async def test_the_command_reads_the_newest_report(tmp_path: Path) -> None:
    replays = open_data_dir(tmp_path / "data").replays
    (replays / "replay-1.json").write_text(json.dumps(await report_of("a", "b")))
    (replays / "replay-2.json").write_text(json.dumps(await report_of("x")))
    found = run_why("--data", str(tmp_path / "data"))
    assert "request 1, no_match" in found.output
    older = run_why("--data", str(tmp_path / "data"), "replay-1", "--json")
    assert json.loads(older.output)["verdict"] == "right"
    one = run_why("--data", str(tmp_path / "data"), "urn:playhead:replay:replay-2:1", "--json")
    assert [miss["number"] for miss in json.loads(one.output)] == [1]


async def test_the_command_reads_a_report_that_was_written_for_it(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps(await report_of("x")))
    assert "request 1, no_match" in run_why("--data", str(tmp_path / "data"), str(report)).output


def test_without_a_replay_there_is_nothing_to_explain(tmp_path: Path) -> None:
    assert "nothing was replayed here yet" in str(run_why("--data", str(tmp_path)).exception)


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    assert "is not the report of a replay" in str(
        run_why("--data", str(tmp_path / "d"), str(tmp_path / "x.json")).exception
    )


# Generations


def live(*exchanges: Exchange) -> str | None:
    return recording_flaw(run_of(*exchanges), deriver(PROFILES, str))


def test_a_whole_recording_has_no_flaw() -> None:
    assert live(exchange(chat("a"), model_answer("A")), exchange(chat("b"), ok(b"{}", status=404), number=2)) is None


@pytest.mark.parametrize("status", sorted({401, 429, 500, 503} & FAILED))
def test_an_error_of_the_moment_is_a_flaw_unless_the_next_try_went_well(status: int) -> None:
    failed = exchange(chat("a"), ok(b"{}", status=status))
    assert f"status {status}" in str(live(failed))
    assert live(failed, exchange(chat("a"), model_answer("A"), number=2)) is None
    assert f"status {status}" in str(live(exchange(chat("a"), model_answer("A"), number=0), failed))


@pytest.mark.parametrize("outcome", ["client_closed", "server_closed", "timed_out", "refused"])
def test_what_did_not_come_to_its_end_is_a_flaw(outcome: Any) -> None:
    assert "is incomplete" in str(live(exchange(chat("a"), ok(b"abc"), outcome=outcome)))


def test_to_leave_a_stream_at_its_own_end_is_no_flaw() -> None:
    asked = chat("a", stream=True)
    assert live(exchange(asked, said_in_a_stream("A"), outcome="client_closed")) is None
    cut = said_in_a_stream("A", ended=False)
    assert "is incomplete" in str(live(exchange(asked, cut, outcome="client_closed")))


@pytest.mark.parametrize("outcome", ["completed", "client_closed"])
def test_a_stream_that_failed_in_its_midst_is_a_flaw_whoever_ended_it_and_may_be_tried_again(outcome: Any) -> None:
    failed = exchange(chat("a", stream=True), failed_in_a_stream("A"), outcome=outcome)
    assert "an error within its stream" in str(live(failed))
    assert live(failed, exchange(chat("a", stream=True), said_in_a_stream("A"), number=2)) is None


def test_a_generation_holds_what_answered_and_what_is_new_and_reads_like_any_bundle() -> None:
    old = run_of(*(exchange(chat(name), model_answer(name), number=number) for number, name in enumerate("abc", 1)))
    new = exchange(chat("d"), model_answer("d"), number=9)
    answered = {old.exchanges[0].id, old.exchanges[2].id}
    made = generation_bundle(
        old.run, PROFILES.digest, [new, *kept_exchanges(old, answered, unused=False)], deriver(PROFILES, str)
    )
    again = read_bundle(bundle_lines(made))
    assert [chat_of(each) for each in again.exchanges] == [chat_of(each) for each in (*old.exchanges[::2], new)]
    assert {each.run for each in again.exchanges} == {"run-1"}
    assert (
        build_recording(again, PROFILES).index.entries[2].key
        == build_recording(run_of(new), PROFILES).index.entries[0].key
    )


def chat_of(each: Exchange) -> bytes:
    return each.request.body.data


def test_what_nobody_asked_for_stays_only_where_it_may_be_unused() -> None:
    old = run_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2))
    assert len(kept_exchanges(old, {old.exchanges[0].id}, unused=False)) == 1
    assert len(kept_exchanges(old, set(), unused=True)) == 2


async def test_a_miss_lists_its_request_and_three_similar_calls_with_rules() -> None:
    run = run_of(*(exchange(chat(f"prompt {n}"), model_answer("A"), number=n) for n in range(1, 6)))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(), lambda _: None)
    await session.answer(chat("prompt 9"))
    (miss,) = json.loads(json.dumps(session.report()["misses"]))
    assert miss["request"]["method"] == "POST"
    assert "prompt 9" in miss["request"]["body"]
    assert len({one["call"] for one in miss["candidates"]}) == 3
    assert miss["candidates"][0]["call"] == miss["nearest"]["call"]
    for one in miss["candidates"]:
        (rule,) = one["rules"]
        assert rule["pointer"] == one["differences"][0]["pointer"] == "/body/messages/0/content"
        assert 'extends = "openai_chat/' in rule["rule"]
        assert "it seems to matter" in rule["note"]
    assert miss["page"] is None


async def test_results_of_tools_are_found_in_any_order_and_one_that_differs_is_named() -> None:
    """What the model called at once, an agent answers as it is done."""

    def request_with_results(*results: tuple[str, str]) -> Request:
        calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ("a", "b")]
        answers = [{"role": "tool", "tool_call_id": one, "content": text} for one, text in results]
        return chat("hi", messages=[{"role": "assistant", "tool_calls": calls}, *answers])

    run = run_of(exchange(request_with_results(("a", "sunny"), ("b", "rain")), model_answer("A")))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(), lambda _: None)
    await session.answer(request_with_results(("b", "snow"), ("a", "sunny")))
    (miss,) = json.loads(json.dumps(session.report()["misses"]))
    (difference,) = miss["nearest"]["differences"]
    assert (difference["pointer"], difference["recorded"], difference["now"]) == (
        "/body/messages/2/content",
        "rain",
        "snow",
    )
    await session.answer(request_with_results(("b", "rain"), ("a", "sunny")))
    assert session.report()["served"] == 1


@pytest.mark.parametrize(
    ("replay", "address"),
    [
        ("replay-1", "http://127.0.0.1:8081/misses/replay-1?request=1"),
        ("blue/r:1", "http://127.0.0.1:8081/misses/r:1?project=blue&request=1"),
    ],
)
async def test_the_page_about_a_miss_is_named_where_there_is_one(replay: str, address: str) -> None:
    run = run_of(exchange(chat("a"), model_answer("A")))
    session = Session(
        replay, build_recording(run, PROFILES), ReplayOptions(page="http://127.0.0.1:8081"), lambda _: None
    )
    answer = await session.answer(chat("b"))
    assert answer is not None
    problem = json.loads(b"".join(piece.data for piece in answer.pieces))
    assert problem["playhead"]["page"] == address
    assert problem["message"].endswith(f" To look at it: {address}")
    report: Any = session.report()
    assert f"  look at it: {address}" in list(explanation_lines(report))
    assert f"          look at it: {address}" in list(report_lines(report))
