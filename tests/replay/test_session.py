"""A replay from the first request to its report."""

import asyncio
import dataclasses
import json
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from calls.codec.json import dumps
from calls.keys.profile import Profiles
from calls.keys.profile_toml import parse_profiles
from calls.model import Exchange, Json, Request
from replay.answer import Answer, source_header
from replay.forks.hooks import HookAnswer
from replay.incoming_request import IncomingRequest
from replay.pacing import RECORDED, Pace
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.report import report_lines
from replay.script import RecordedExchange
from replay.session import Session
from tests.replay.sessions import answer_request, miss_request, session_of
from tests.replay.strategies import (
    CHAT,
    JSON,
    PROFILES,
    SECOND,
    chat,
    exchange,
    model_answer,
    ok,
    post,
    run_of,
    said_in_a_stream,
)

TICKETS = "https://tickets.example.com/v2/search"


def mark_of(answer: Answer) -> str:
    (value,) = [value for name, value in answer.headers if name == "Playhead"]
    return value


async def test_an_unchanged_request_gets_the_recorded_bytes_in_the_recorded_pieces() -> None:
    session = session_of(exchange(chat("Paris?"), ok(b'{"a"', b":1", b"}")))
    answer = await answer_request(session, chat("Paris?"))
    assert [piece.data for piece in answer.pieces] == [b'{"a"', b":1", b"}"]
    assert (answer.status, answer.end, mark_of(answer)) == (
        200,
        "complete",
        'replayed; run="run-1"; step=1; match=strict',
    )


async def test_a_right_replay_is_reported_as_right() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2))
    for prompt in ("b", "a"):
        await answer_request(session, chat(prompt))
    report = session.report()
    assert report["verdict"] == "right"
    assert (report["served"], report["missed"], report["unused"], report["live"]) == (2, 0, 0, 0)
    assert report["first_divergence"] is None


async def test_a_changed_prompt_misses_and_says_where() -> None:
    session = session_of(exchange(chat("Paris?"), model_answer("Yes")))
    problem = await miss_request(session, chat("Rome?"))
    explanation = problem["playhead"]
    assert (explanation["run"], explanation["reason"], explanation["nearest"]["step"]) == ("run-1", "no_match", 1)
    assert explanation["nearest"]["differences"] == [
        {"pointer": "/body/messages/0/content", "recorded": "Paris?", "now": "Rome?"}
    ]
    assert problem["error"]["type"] == "replay_miss"
    assert problem["message"] == problem["error"]["message"], "where AWS's SDKs look"
    assert "/body/messages/0/content" in problem["error"]["message"]
    assert session.report()["verdict"] == "diverged"


async def test_one_request_too_many_is_a_miss_of_its_own_kind() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")))
    await answer_request(session, chat("a"))
    assert (await miss_request(session, chat("a")))["playhead"]["reason"] == "consumed"


async def test_repeat_last_goes_on_and_is_counted() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")), after_last="repeat-last")
    answers = [await answer_request(session, chat("a")) for _ in range(3)]
    assert {answer.body for answer in answers} == {model_answer("A").body.data}
    assert session.report()["again"] == 2


async def test_an_unused_recording_is_a_divergence_unless_it_is_allowed() -> None:
    both = exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2)
    strict, lenient = session_of(*both), session_of(*both, allow_unused=True)
    for session in (strict, lenient):
        await answer_request(session, chat("a"))
    assert (strict.report()["verdict"], lenient.report()["verdict"]) == ("diverged", "right")
    first: Any = strict.report()["first_divergence"]
    assert (first["reason"], first["step"]) == ("unused", 2)


async def test_of_a_replay_that_nobody_asked_nothing_can_be_said() -> None:
    assert session_of(exchange(chat("a"), model_answer("A")), allow_unused=True).report()["verdict"] == "unknown"
    assert session_of().report()["verdict"] == "unknown"


async def test_on_miss_live_lets_it_go_and_says_so() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")), on_miss="live")
    assert await session.answer(chat("b")) is None
    report = session.report()
    assert (report["live"], report["missed"], report["verdict"]) == (1, 0, "diverged")


async def test_a_field_outside_the_key_may_change_and_is_shown_as_drift() -> None:
    session = session_of(exchange(chat("a", user="ann"), model_answer("A")))
    answer = await answer_request(session, chat("a", user="bob"))
    assert answer.status == 200
    report = session.report()
    assert report["drift"] == [{"call": exchange(chat("a"), None).id, "pointers": ["/body/user"]}]
    assert report["verdict"] == "right"


async def test_a_header_outside_the_key_may_change_and_is_shown_as_drift() -> None:
    recorded, now = (post(TICKETS, b"{}", (*JSON, ("X-Tenant", tenant))) for tenant in ("5", "6"))
    session = session_of(exchange(recorded, ok(b"{}")))
    await answer_request(session, now)
    assert session.report()["drift"] == [{"call": exchange(now, None).id, "pointers": ["/headers/x-tenant"]}]


async def test_of_recordings_with_one_key_each_request_gets_its_own_form() -> None:
    whole, stream = model_answer("whole"), said_in_a_stream("streamed")
    session = session_of(exchange(chat("a"), whole), exchange(chat("a", stream=True), stream, number=2))
    asked = chat("a", stream=True, user="ann"), chat("a", user="ann")
    answers = [await answer_request(session, request) for request in asked]
    assert [b"".join(piece.data for piece in answer.pieces) for answer in answers] == [
        stream.body.data,
        whole.body.data,
    ]
    assert all("reframed" not in mark_of(answer) for answer in answers)
    report = session.report()
    assert (report["verdict"], report["unused"], report["reframed"]) == ("right", 0, 0)


async def test_of_recordings_with_one_key_the_one_that_says_the_same_answers() -> None:
    recorded = [
        exchange(chat("a", user=name), model_answer(name), number=n) for n, name in enumerate(("ann", "bob", "cy"), 1)
    ]
    session = session_of(*recorded)
    # Serialized differently, so that no raw request equals the recorded one.
    answers = [
        await answer_request(session, post(CHAT, chat("a", user=name).body.data + b" "))
        for name in ("cy", "ann", "zoe")
    ]
    said_by = [json.loads(answer.body)["choices"][0]["message"]["content"] for answer in answers]
    assert said_by == ["cy", "ann", "bob"]
    assert [mark_of(answer).rpartition("match=")[2] for answer in answers] == ["strict", "strict", "semantic"]
    assert session.report()["unused"] == 0


async def test_what_changes_with_every_sending_is_no_drift() -> None:
    recorded = post(TICKETS, b"{}", (*JSON, ("traceparent", "00-1"), ("x-stainless-retry-count", "0")))
    now = post(TICKETS, b"{}", (*JSON, ("traceparent", "00-2"), ("x-stainless-retry-count", "1")))
    session = session_of(exchange(recorded, ok(b"{}")))
    await answer_request(session, now)
    assert session.report()["drift"] == []


async def test_the_boundary_of_a_multipart_body_is_no_drift() -> None:
    """Every client makes a new one for each request (fetch, curl, requests)."""

    def form(boundary: str, charset: str) -> Request:
        body = f'--{boundary}\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n--{boundary}--\r\n'
        media = ("content-type", f"multipart/form-data; boundary={boundary}; charset={charset}")
        return post(TICKETS, body.encode(), (media,))

    async def drift(now: Request) -> Any:
        session = session_of(exchange(form("x1", "utf-8"), ok(b"{}")))
        await answer_request(session, now)
        return session.report()["drift"]

    assert await drift(form("y2", "utf-8")) == []
    [one] = await drift(form("y2", "latin-1"))
    assert one["pointers"] == ["/headers/content-type"]


async def test_spelling_is_no_drift_and_no_miss() -> None:
    spaced = post(CHAT, b'{ "messages": [{"content": "a", "role": "user"}], "model": "gpt-test" }')
    session = session_of(exchange(chat("a"), model_answer("A")))
    assert (await answer_request(session, spaced)).status == 200
    assert session.report()["drift"] == []


async def test_errors_of_the_provider_are_answers_like_others() -> None:
    session = session_of(
        exchange(chat("a"), ok(b"{}", status=429)),
        exchange(chat("a"), model_answer("A"), number=2, started_at=2 * SECOND),
    )
    statuses = [(await answer_request(session, chat("a"))).status for _ in range(2)]
    assert statuses == [429, 200]


async def test_hedged_requests_are_called_ambiguous() -> None:
    session = session_of(
        exchange(chat("a"), model_answer("A"), started_at=0, ended_at=10),
        exchange(chat("a"), model_answer("B"), number=2, started_at=5),
    )
    for _ in range(2):
        await answer_request(session, chat("a"))
    assert session.report()["ambiguous"] == 2


async def test_a_recorded_pace_keeps_the_times_of_head_and_pieces() -> None:
    session = session_of(exchange(chat("a"), ok(b"x", b"y")), pace=RECORDED)
    answer = await answer_request(session, chat("a"))
    assert answer.at == SECOND // 1000
    assert [piece.at for piece in answer.pieces] == [1_000_000, 2_000_000]
    assert answer.end_at == SECOND // 2


async def test_what_came_before_a_step_can_be_left_out() -> None:
    session = session_of(
        exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2), from_step=2
    )
    assert mark_of(await answer_request(session, chat("b"))) == 'replayed; run="run-1"; step=2; match=strict'
    assert session.report()["verdict"] == "right"


async def test_a_recording_under_other_rules_is_keyed_again() -> None:
    rule = '[[profile]]\nname = "tickets/1"\nmatch = { host = "tickets.example.com" }\ntransient = ["$.sent_at"]\n'
    tickets = Profiles((*parse_profiles(rule), *PROFILES.profiles))
    recorded = exchange(post(TICKETS, b'{"query":"x","sent_at":1}'), ok(b"{}"))
    now = post(TICKETS, b'{"query":"x","sent_at":2}')
    assert (await miss_request(session_of(recorded), now))["playhead"]["reason"] == "no_match"
    assert (await answer_request(session_of(bundle=run_of(recorded), profiles=tickets), now)).status == 200


async def test_a_miss_that_a_change_of_rules_explains_says_so() -> None:
    rule = '[[profile]]\nname = "tickets/1"\nmatch = { host = "tickets.example.com" }\ntransient = ["$.sent_at"]\n'
    tickets = Profiles((*parse_profiles(rule), *PROFILES.profiles))
    recorded = exchange(post(TICKETS, b'{"query":"x","sent_at":1}'), ok(b"{}"))
    session = session_of(bundle=run_of(recorded, profiles=tickets), profiles=PROFILES)
    problem = await miss_request(session, post(TICKETS, b'{"query":"x","sent_at":2}'))
    assert problem["playhead"]["reason"] == "profile_changed"
    assert "[[profile]]" in problem["playhead"]["fix"]


async def test_a_true_difference_is_no_matter_of_rules_that_changed_since() -> None:
    """Recorded under the shipped profiles, before a rule was added that leaves a field out; the field differed then too."""
    rule = '[[profile]]\nname = "tickets/1"\nmatch = { host = "tickets.example.com" }\ntransient = ["$.sent_at"]\n'
    tickets = Profiles((*parse_profiles(rule), *PROFILES.profiles))
    recorded = exchange(post(TICKETS, b'{"query":"x","sent_at":1}'), ok(b"{}"))
    session = session_of(bundle=run_of(recorded, profiles=PROFILES), profiles=tickets)
    problem = await miss_request(session, post(TICKETS, b'{"query":"y","sent_at":2}'))
    assert problem["playhead"]["reason"] == "no_match"
    assert "undo" not in problem["playhead"]["fix"]


async def test_a_first_recording_has_nothing_that_it_could_diverge_from() -> None:
    session = session_of(on_miss="live", candidate="run-1")
    assert await session.answer(chat("a")) is None
    report: Any = session.report()
    assert (report["live"], report["verdict"], report["first_divergence"]) == (1, "unknown", None)
    assert next(report_lines(report)) == "playhead: run-1 had no recording: its calls went live and were recorded"


async def test_a_miss_in_an_api_that_nobody_described_proposes_the_rule() -> None:
    session = session_of(exchange(post(TICKETS, b'{"query":"x","sent at":1}'), ok(b"{}")))
    fix = (await miss_request(session, post(TICKETS, b'{"query":"x","sent at":2}')))["playhead"]["fix"]
    proposed = fix.partition("playhead.toml: ")[2]
    assert "$['sent at']" in proposed
    assert parse_profiles(
        proposed.replace("[[profile]] ", "[[profile]]\n").replace(", match", "\nmatch").replace(", trans", "\ntrans")
    )


async def test_a_secret_that_redaction_no_longer_finds_is_named_as_the_cause() -> None:
    session = session_of(exchange(chat("my key is PLAYHEAD_KABCDEFGH, ok?"), model_answer("A")))
    problem = await miss_request(session, chat("my key is sk-live-0123456789, ok?"))
    assert problem["playhead"]["reason"] == "redaction_changed"


@pytest.mark.parametrize("then", ["PLAYHEAD_KABCDEFGH", "*******"])
async def test_a_dummy_key_that_is_too_short_is_named_with_what_to_do(then: str) -> None:
    session = session_of(exchange(post(TICKETS, dumps({"api_key": then, "query": "x"})), ok(b"{}")))
    problem = await miss_request(session, post(TICKETS, b'{"api_key":"***","query":"x"}'))
    assert problem["playhead"]["reason"] == "redaction_changed"
    assert "12 characters or more" in problem["playhead"]["fix"]


async def test_a_request_too_large_to_keep_is_distinguished_from_one_not_recorded() -> None:
    upload = post(TICKETS, b"x" * 1000)
    kept = replace(upload, body=replace(upload.body, data=b"x" * 100, truncated=True))
    session = session_of(exchange(chat("a"), model_answer("A")), exchange(kept, ok(b"{}"), number=2))
    problem = await miss_request(session, upload)
    assert (problem["playhead"]["reason"], problem["playhead"]["nearest"]["step"]) == ("incomplete", 2)
    assert "body_limit to 1000 or more" in problem["playhead"]["fix"]
    other = await miss_request(session, post(TICKETS, b"y" * 1000))
    assert other["playhead"]["reason"] == "no_match"


async def test_a_head_request_gets_a_miss_without_a_body() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")))
    answer = await answer_request(session, Request(method="HEAD", url=TICKETS))
    assert (answer.status, answer.body) == (424, b"")


async def test_two_replays_of_one_recording_do_not_share_a_position() -> None:
    ready = build_recording(run_of(exchange(chat("a"), model_answer("A"))), PROFILES)
    sessions = [Session(f"replay-{n}", ready, ReplayOptions(), lambda _: None) for n in range(2)]
    for session in sessions:
        assert (await answer_request(session, chat("a"))).status == 200


async def test_a_hit_says_whether_the_whole_request_is_the_recorded_one() -> None:
    run = [exchange(chat(name, user="ann"), model_answer(name), number=number) for number, name in enumerate("abc", 1)]
    session = session_of(*run)
    respelled = post(CHAT, b" " + chat("b", user="ann").body.data)
    answers = [await answer_request(session, one) for one in (chat("a", user="ann"), respelled, chat("c", user="bob"))]
    assert [mark_of(answer).rpartition("; ")[2] for answer in answers] == [
        "match=strict",
        "match=strict",
        "match=semantic",
    ]
    report = session.report()
    assert (report["strict"], report["semantic"]) == (2, 1)


async def test_branches_get_their_own_answers() -> None:
    run = [
        replace(exchange(chat("a"), model_answer(who), number=number), actor=who)
        for number, who in enumerate(("x", "y"), 1)
    ]
    session = session_of(*run)
    for who in "yx":
        answer = await session.answer(chat("a"), who)
        assert answer
        assert answer.body == model_answer(who).body.data
    assert session.report()["verdict"] == "right"


async def test_a_request_that_another_branch_recorded_misses_and_says_whose_it_was() -> None:
    run = [
        replace(exchange(chat(what), model_answer(what), number=number), actor=who)
        for number, (who, what) in enumerate((("x", "a"), ("y", "b")), 1)
    ]
    answer = await session_of(*run).answer(chat("a"), "y")
    assert answer
    problem = json.loads(answer.body)
    assert problem["playhead"]["reason"] == "no_match"
    assert "was recorded by actor x (step 1), but this request comes from actor y" in problem["detail"]
    assert "X-Playhead-Actor" in problem["playhead"]["fix"]


async def test_a_client_that_leaves_before_the_end_is_no_hit() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")))
    answer = await answer_request(session, chat("a"))
    assert answer.note_client_left
    answer.note_client_left(3)
    report = session.report()
    assert (report["served"], report["strict"], report["missed"], report["verdict"]) == (0, 0, 1, "diverged")
    first: Any = report["first_divergence"]
    assert (first["reason"], first["nearest"]["step"]) == ("client_left", 1)


async def test_a_client_that_leaves_while_its_large_request_is_keyed_makes_no_right_replay() -> None:
    large = chat("x" * 300_000)
    session = session_of(exchange(large, model_answer("A")))
    asking = asyncio.ensure_future(session.answer(post(CHAT, b" " + large.body.data)))  # noqa: TID251 # as below
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert session.report()["verdict"] == "diverged"


async def test_a_recording_that_does_not_tell_its_keys_does_not_blame_the_rules() -> None:
    run = run_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2))
    foreign = dataclasses.replace(
        run, profiles="none", entries=tuple(dataclasses.replace(entry, call=None) for entry in run.entries)
    )
    session = session_of(bundle=foreign)
    assert (await miss_request(session, chat("c")))["playhead"]["reason"] == "no_match"
    await answer_request(session, chat("a"))
    assert (await miss_request(session, chat("a")))["playhead"]["reason"] == "consumed"


async def test_a_client_that_leaves_while_we_look_has_missed_all_the_same() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")))
    asking = asyncio.ensure_future(session.answer(chat("b")))  # noqa: TID251 # it is cancelled at once
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    report = session.report()
    assert (report["missed"], report["verdict"]) == (1, "diverged")
    first: Any = report["first_divergence"]
    assert first["reason"] == "client_left"


@pytest.mark.parametrize(("large", "reason"), [(False, "client_left"), (True, "incomplete")])
async def test_a_request_that_never_came_whole_is_missed(large: bool, reason: str) -> None:
    session = session_of(exchange(chat("a"), model_answer("A")))
    await answer_request(session, chat("a"))
    session.note_unseen_request(large=large)
    report = session.report()
    assert (report["served"], report["missed"], report["verdict"]) == (1, 1, "diverged")
    first: Any = report["first_divergence"]
    assert first["reason"] == reason


async def test_every_change_is_announced() -> None:
    seen: list[str] = []
    session = Session(
        "replay-1",
        build_recording(run_of(exchange(chat("a"), model_answer("A"))), PROFILES),
        ReplayOptions(),
        seen.append,
    )
    await session.answer(chat("a"))
    await session.answer(chat("b"))
    assert seen == ["replay-1", "replay-1"]


class Fork:
    """A hook that answers the second step itself, and decides about unrecorded requests by their paths."""

    def edit_answer(
        self,
        incoming: IncomingRequest,
        recorded: RecordedExchange,
        exchange: Exchange,
        pace: Pace,
        source_header: tuple[str, str],
    ) -> HookAnswer | None:
        return HookAnswer(Answer(status=200, headers=(source_header,))) if recorded.step == 2 else None

    def answer_miss(self, incoming: IncomingRequest, key: str, raw: str) -> HookAnswer | Literal["live"] | None:
        if "live" in incoming.request.url:
            return "live"
        return HookAnswer(Answer(status=403), is_edit=False) if incoming.request.body.data == b"b" else None

    def extend_report(self, report: dict[str, Json]) -> dict[str, Json]:
        return report | {"hooked": True}


async def test_an_edit_answers_in_place_of_the_record() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), None, number=2), edit_hook=Fork())
    answers = [await answer_request(session, chat(prompt)) for prompt in "ab"]
    assert [mark_of(answer).partition(";")[0] for answer in answers] == ["replayed", "edited"]
    report = session.report()
    assert (report["served"], report["edited"], report["unused"]) == (1, 1, 0)


async def test_after_the_last_step_of_a_prefix_somebody_else_decides() -> None:
    run = exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2)
    session = session_of(*run, until_step=1, miss_hook=Fork())
    assert (await answer_request(session, chat("a"))).status == 200
    assert (await answer_request(session, post("https://blocked.test/", b"b"))).status == 403
    assert await session.answer(post("https://live.test/", b"{}")) is None
    assert (await miss_request(session, post("https://other.test/", b"{}")))["playhead"]["reason"] == "no_match"
    report = session.report()
    assert [report[name] for name in ("served", "missed", "live", "unused", "hooked")] == [1, 1, 1, 0, True]


async def test_what_is_put_back_answers_once_more_and_is_not_unused() -> None:
    class Faulty(Fork):
        times = 1

        def edit_answer(
            self,
            incoming: IncomingRequest,
            recorded: RecordedExchange,
            exchange: Exchange,
            pace: Pace,
            source_header: tuple[str, str],
        ) -> HookAnswer | None:
            self.times -= 1
            return HookAnswer(Answer(status=429), keeps_recorded=True) if self.times == 0 else None

    run = exchange(chat("a"), model_answer("first")), exchange(chat("a"), model_answer("second"), number=2)
    session = session_of(*run, edit_hook=Faulty())
    answers = [await answer_request(session, chat("a")) for _ in range(3)]
    assert [answer.status for answer in answers] == [429, 200, 200]
    assert [b"first" in answers[1].body, b"second" in answers[2].body] == [True, True]
    report = session.report()
    assert (report["served"], report["edited"], report["unused"]) == (2, 1, 0)


def test_the_header_names_a_run_as_it_is_named_within_its_project() -> None:
    assert (
        source_header("live", run="web/night")
        == source_header("live", run="night")
        == ("Playhead", 'live; run="night"')
    )


@pytest.mark.parametrize(
    ("members", "has_variables"),
    [
        pytest.param({"isolation": "captive", "attribution": "given"}, False, id="captive"),
        pytest.param({"isolation": "watched", "attribution": "given"}, True, id="watched"),
        pytest.param({"isolation": "none", "attribution": "derived"}, True, id="behind up"),
        pytest.param({"isolation": "none", "attribution": None}, False, id="of another program"),
        pytest.param({}, False, id="of a file that does not say"),
        pytest.param(
            {"isolation": "captive", "attribution": "given", "labels": {"playhead.proxy_variables": "yes"}},
            True,
            id="a captive fork of one behind up",
        ),
    ],
)
def test_a_command_had_proxy_variables_where_it_was_not_captive(members: dict[str, Any], has_variables: bool) -> None:
    bundle = run_of(exchange(post(TICKETS, b"{}"), ok(b"{}")))
    recording = build_recording(dataclasses.replace(bundle, run={**bundle.run, **members}), PROFILES)
    assert recording.has_proxy_variables == has_variables


def test_an_imported_run_shows_by_its_evidence_that_a_worker_recorded_it() -> None:
    """What another program recorded says of no call which run it belongs to."""
    made = exchange(post(TICKETS, b"{}"), ok(b"{}"))
    exchange_of_agent = replace(made, run_evidence=(("owner", "agent.py-1-2"),))
    for one, has_variables in ((made, False), (exchange_of_agent, True)):
        bundle = run_of(one)
        members = {**bundle.run, "isolation": "none", "attribution": None}
        assert build_recording(dataclasses.replace(bundle, run=members), PROFILES).has_proxy_variables == has_variables


def test_a_name_that_a_recorded_request_reached_resolves_in_a_replay() -> None:
    """A run that is recorded in two parts has the label of the first one, in which it may not have resolved."""
    bundle = run_of(exchange(post(TICKETS, b"{}"), ok(b"{}")))
    labels = {"playhead.unresolved": "gone.test tickets.example.com"}
    recording = build_recording(dataclasses.replace(bundle, run={**bundle.run, "labels": labels}), PROFILES)
    assert recording.unresolved_names == ("gone.test",)
