"""The report as text."""

import json
import re
from typing import Any

import click
import pytest

from proxy.cli import load_command
from proxy.cli.common import print_json
from proxy.commands.replay import report_text
from replay.misses.why import explanation_lines
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.report import (
    REPORT_LISTED,
    interrupted_report,
    report_lines,
    report_with_effects,
    report_with_escapes,
    report_with_exit,
)
from replay.session import Session
from tests.replay.strategies import PROFILES, chat, exchange, model_answer, ok, post, run_of


def text(report: dict[str, Any]) -> str:
    return "\n".join(report_lines(report))


async def report_of(*prompts: str, **options: Any) -> dict[str, Any]:
    """The report of a replay of "a" and "b" with these requests."""
    run = run_of(exchange(chat("a"), model_answer("A")), exchange(chat("b", user="ann"), model_answer("B"), number=2))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(**options), lambda _: None)
    for prompt in prompts:
        await session.answer(chat(prompt, user="bob"))
    report: dict[str, Any] = json.loads(json.dumps(session.report()))
    return report


async def test_a_report_has_every_member_of_the_contract() -> None:
    members = [
        "id",
        "run",
        "served",
        "missed",
        "unused",
        "live",
        "edited",
        "ambiguous",
        "drift",
        "first_divergence",
        "verdict",
    ]
    assert set(members) <= (await report_of()).keys()


async def test_a_right_replay_is_said_in_two_lines_and_its_drift_in_one() -> None:
    assert text(await report_of("a", "b")).splitlines() == [
        "playhead: replay of run-1 was right: every call was answered from the recording",
        "          2 served, 0 missed, 0 live, 0 unused; the recording has 2",
        "          drift: 2 answered requests differ from the recorded ones outside their key: /body/user (2)",
    ]


async def test_a_miss_is_shown_with_both_sides_and_what_to_do() -> None:
    shown = text(await report_of("a", "c"))
    assert "DIVERGED" in shown
    assert "first: request 2, no_match: POST https://api.openai.com/v1/chat/completions, nearest is step 2:" in shown
    assert "/body/messages/0/content\n              - 'b'\n              + 'c'" in shown
    assert "unused: step 2, POST https://api.openai.com/v1/chat/completions" in shown
    assert shown.splitlines()[-4:] == [
        "          next: record the run again: playhead record -- CMD",
        "            or: record only what is new: playhead replay run-1 --on-miss record -- CMD",
        "            or: let what is new go live: playhead replay run-1 --on-miss live -- CMD",
        "            or: show which fields are in its key: playhead explain --request FILE",
    ]


async def test_an_unused_recording_is_named_unless_it_may_be() -> None:
    report = await report_of("a")
    assert "unused: step 2" in text(report)
    assert "left over" not in text({**report, "allow_unused": True})
    shown = text(report)
    assert "--allow-unused" in shown


async def test_a_replay_that_nothing_reached_points_to_the_doctor() -> None:
    for options in ({}, {"allow_unused": True}):
        assert "playhead doctor" in text(await report_of(**options))


async def test_a_long_report_stays_short() -> None:
    run = run_of(*(exchange(chat(f"recorded {n}"), model_answer("A"), number=n) for n in range(1, 200)))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(), lambda _: None)
    for n in range(100):
        await session.answer(chat(f"asked {n}"))
    report: Any = session.report()
    assert (report["missed"], report["unused"]) == (100, 199)
    assert len(json.dumps(report)) < 100_000
    assert len(text(report).splitlines()) < 40


async def test_a_long_name_makes_neither_a_long_report_nor_a_long_answer() -> None:
    name, path = "n" * 100_000, "p" * 10_000
    sent = post(f"https://tickets.example.com/{path}", b'{"%s recorded":1}' % name.encode())
    other = post(f"https://tickets.example.com/{path}", b'{"%s\\n now":1}' % name.encode())
    drifting = exchange(chat("a", metadata={name: "1"}), model_answer("A"), number=2)
    session = Session(
        "replay-1",
        build_recording(run_of(exchange(sent, ok(b"{}")), drifting), PROFILES),
        ReplayOptions(),
        lambda _: None,
    )
    missed = await session.answer(other)
    await session.answer(chat("a", metadata={name: "2"}))
    assert missed is not None
    output = json.loads(b"".join(piece.data for piece in missed.pieces))
    assert len(output["playhead"]["nearest"]["differences"]) == 2
    assert "playhead.toml" not in output["playhead"]["fix"], "nobody writes down a rule of such a name"
    report: Any = session.report()
    assert report["drifted"]
    assert len(json.dumps(output)) < 10_000
    assert len(json.dumps(report)) < 10_000
    assert len(text(report)) < 5_000
    assert len("".join(explanation_lines(report))) < 5_000


def commands_in(words: str) -> list[tuple[str, list[str]]]:
    """The commands that a sentence suggests, with their flags."""
    found = re.findall(r"playhead ([a-z]+)([^;`(]*)", words)
    return [(name, re.findall(r"--[a-z][a-z-]+", rest)) for name, rest in found]


async def test_every_command_that_is_proposed_exists() -> None:
    tickets = post("https://tickets.example.com/", b'{"a":1}')
    run = run_of(exchange(chat("a"), model_answer("A")), exchange(tickets, model_answer("B"), number=2))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(), lambda _: None)
    for request in (chat("a"), chat("a"), chat("c"), post("https://tickets.example.com/", b'{"a":2}')):
        await session.answer(request)
    misses: Any = session.report()["misses"]
    proposed = [command for miss in misses for command in commands_in(miss["fix"])]
    for options in ({}, {"allow_unused": True}):
        proposed += commands_in(text(await report_of("a", **options)))
    assert {name for name, _ in proposed} >= {"record", "replay", "explain"}
    for name, flags in proposed:
        exists(name, flags)


def exists(name: str, flags: list[str]) -> None:
    command = load_command(name)
    assert isinstance(command, click.Command), f"playhead {name} does not exist"
    known = {flag for parameter in command.params for flag in parameter.opts}
    assert set(flags) <= known, f"playhead {name} has no {set(flags) - known}"


async def test_what_a_proxy_that_died_was_not_asked_for_says_nothing() -> None:
    report = interrupted_report(await report_of("a"))
    assert report["verdict"] == "unknown"
    assert "was interrupted" in text(report)
    assert "left over" not in text(report)
    assert text(report).splitlines()[-1].strip() == "next: run it again"
    missed = interrupted_report(await report_of("c"))
    assert missed["verdict"] == "diverged"
    assert "interrupted: its proxy ended before the command did" in text(missed)


HOSTILE = "\x1b]0;x\x07\x9b2J\u202e\n\U000e0041é"


async def test_no_report_moves_a_cursor() -> None:
    report = await report_of("a", "c")
    report["first_divergence"]["nearest"]["differences"][0]["pointer"] = HOSTILE
    shown = report_text(report, "night")
    assert shown.count("\n") == text(await report_of("a", "c")).count("\n")
    assert shown.replace("\n", "").isprintable()


def test_no_json_moves_a_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": HOSTILE})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"a": HOSTILE}
    assert shown.replace("\n", "").isprintable()
    assert "é" in shown


async def test_a_refused_connection_makes_a_replay_diverge_and_is_named() -> None:
    run = run_of(exchange(chat("a"), model_answer("A")))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(), lambda _: None)
    await session.answer(chat("a"))
    for _ in range(2):
        session.note_refused_connection("db.test:5432", "it speaks neither TLS nor HTTP")
    report = session.report()
    assert (report["verdict"], report["refused"]) == ("diverged", 2)
    assert report["refusals"] == [
        {"destination": "db.test:5432", "reason": "it speaks neither TLS nor HTTP", "count": 2}
    ]
    assert "refused: db.test:5432 (2 times): it speaks neither TLS nor HTTP" in text(report)
    assert "--allow-local db.test:5432" in text(report)
    assert interrupted_report(report)["verdict"] == "diverged"


async def test_refused_connections_are_named_up_to_a_bound() -> None:
    session = Session("replay-1", build_recording(run_of(), PROFILES), ReplayOptions(), lambda _: None)
    for number in range(1000):
        session.note_refused_connection(f"host-{number}.test:1", "why")
    report = session.report()
    assert report["refused"] == 1000
    refusals = report["refusals"]
    assert isinstance(refusals, list)
    assert len(refusals) == REPORT_LISTED


def test_a_replay_that_went_past_the_proxy_is_not_right() -> None:
    right = {"verdict": "right", "missed": 0, "live": 0, "unused": 0, "allow_unused": False}
    passed = {"outcome": "passed", "count": 4}
    assert report_with_escapes(right | {"connections": [passed]}) == right | {"connections": [passed], "escaped": 0}
    gone = report_with_escapes(right | {"connections": [passed, {"outcome": "escaped", "count": 2}]})
    assert (gone["verdict"], gone["escaped"]) == ("diverged", 2)
    assert report_with_escapes({**right, "verdict": "unknown"})["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("recorded", "served", "expected"),
    [(0, 0, "right"), (4, 4, "right"), (4, 0, "unknown")],
    ids=["steps and questions alone", "effects that were asked for", "effects that nobody asked for"],
)
async def test_a_recording_without_calls_is_judged_by_its_effects(recorded: int, served: int, expected: str) -> None:
    session = Session("replay-1", build_recording(run_of(), PROFILES), ReplayOptions(), lambda _: None)
    counts = dict.fromkeys(("missed", "unused", "library"), 0) | {"recorded": recorded, "served": served}
    effects: dict[str, Any] = {**counts, "misses": [], "output_differs": [], "exit_code": 0}
    report = report_with_effects(session.report(), effects)
    assert report["verdict"] == expected
    head = "was right: the recording has no call, and the command made none" if expected == "right" else "no verdict"
    assert head in text(report)
    ended = report_with_exit(report_with_effects(session.report(), {**effects, "output_differs": ["0"]}), 5)
    assert (ended["verdict"], *text(ended).splitlines()[-2:]) == (
        "diverged",
        "          process 0 wrote something else to its standard output than the recorded one",
        "          the command ended with 5, the recorded one with 0",
    )
