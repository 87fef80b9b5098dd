"""The choice of the recording that answers; requests are looked up as the recorder would redact them."""

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from calls.events import EffectBatch
from calls.model import Exchange, Json, Request
from calls.redaction.redactor import Redactor
from calls.redaction.whole_request import redact_request
from replay.answer import Answer
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.replays import SUSPEND_AFTER, LoadSource, Replays, ReplaySource, UnusableRecording
from replay.session import Session
from store.bundle.bundle import Bundle
from tests.replay.strategies import CHAT, JSON, PROFILES, chat, exchange, model_answer, post, run_of

KEY = b"k" * 32


async def replays_of(*bundles: Bundle, load: LoadSource | None = None, key: bytes = KEY, **options: Any) -> Replays:
    replays = Replays(
        redactor=Redactor(key=key),
        profiles=PROFILES,
        options=ReplayOptions(**options),
        load=load,
        on_change=lambda _: None,
    )
    await replays.start([ReplaySource(replay=f"replay-{n}", bundle=bundle) for n, bundle in enumerate(bundles, 1)])
    return replays


def bundle(run: str, answer: str = "A") -> Bundle:
    return run_of(exchange(chat("a"), model_answer(answer)), run=run)


async def answer_request(replays: Replays, run: str | None, request: Request | None = None) -> Answer:
    answer = await replays.answer(request or chat("a"), run=run, owner="127.0.0.1:1")
    assert answer is not None
    return answer


def reason(answer: Answer) -> str:
    assert answer.status == 424
    return str(json.loads(answer.body)["playhead"]["reason"])


def store(*bundles: Bundle) -> tuple[LoadSource, list[str]]:
    """A store with these recordings, which remembers what was requested."""
    loaded: list[str] = []

    async def load(name: str) -> ReplaySource | None:
        loaded.append(name)
        await asyncio.sleep(0)
        return next((ReplaySource(replay=name, bundle=bundle) for bundle in bundles if bundle.run["id"] == name), None)

    return load, loaded


@pytest.mark.parametrize("run", [None, "run-1", "something else"])
async def test_one_recording_answers_everything_whatever_run_is_named(run: str | None) -> None:
    assert (await answer_request(await replays_of(bundle("run-1")), run)).status == 200


async def test_of_several_recordings_the_named_one_answers() -> None:
    replays = await replays_of(bundle("run-1", "one"), bundle("run-2", "two"))
    assert b"two" in (await answer_request(replays, "run-2")).body
    assert b"one" in (await answer_request(replays, "replay-1")).body


async def test_of_several_recordings_none_answers_a_request_that_names_none() -> None:
    replays = await replays_of(bundle("run-1"), bundle("run-2"))
    answer = await answer_request(replays, None)
    assert reason(answer) == "unknown_run"
    assert "run-1, run-2" in json.loads(answer.body)["detail"]


async def test_a_run_and_its_replay_share_one_position() -> None:
    replays = await replays_of(bundle("run-1"), bundle("run-2"))
    assert (await answer_request(replays, "run-1")).status == 200
    assert reason(await answer_request(replays, "replay-1")) == "consumed"


async def test_without_recordings_of_its_own_the_named_run_comes_from_the_store() -> None:
    load, loaded = store(bundle("run-1"))
    replays = await replays_of(load=load)
    assert (await answer_request(replays, "run-1")).status == 200
    assert reason(await answer_request(replays, "run-1")) == "consumed"
    assert loaded == ["run-1"]


async def test_a_run_that_the_store_does_not_have_is_a_miss_and_may_come_later() -> None:
    bundles: list[Bundle] = []

    async def load(name: str) -> ReplaySource | None:
        return ReplaySource(replay=name, bundle=bundles[0]) if bundles else None

    replays = await replays_of(load=load)
    assert reason(await answer_request(replays, "run-1")) == "unknown_run"
    bundles.append(bundle("run-1"))
    assert (await answer_request(replays, "run-1")).status == 200


async def test_without_a_name_the_store_is_not_asked() -> None:
    load, loaded = store(bundle("run-1"))
    assert reason(await answer_request(await replays_of(load=load), None)) == "unknown_run"
    assert loaded == []


async def test_a_run_is_loaded_once_however_many_ask_at_the_same_time() -> None:
    load, loaded = store(
        run_of(*(exchange(chat(prompt), model_answer(prompt), number=n) for n, prompt in enumerate("abcd", 1)))
    )
    replays = await replays_of(load=load)
    answers = await asyncio.gather(*(answer_request(replays, "run-1", chat(prompt)) for prompt in "abcd"))
    assert {answer.status for answer in answers} == {200}
    assert loaded == ["run-1"]


async def test_a_run_is_expected_unless_it_is_loaded_or_answers_nothing() -> None:
    load, _ = store(bundle("run-1"))
    replays, expected = await replays_of(load=load), list[str]()
    replays.expect = expected.append
    replays.expect_run("run-1")
    assert expected == ["run-1"]
    await answer_request(replays, "run-1")
    replays.expect_run("run-1")
    assert expected == ["run-1"]
    replays.startup_recordings = ("a", "b")
    replays.expect_run("other")
    replays.expect_run("b")
    assert expected == ["run-1", "b"]


async def test_a_request_is_redacted_while_its_run_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def redact_and_note(request: Request, redactor: Redactor) -> Request:
        steps.append("redacted")
        return redact_request(request, redactor)

    monkeypatch.setattr("replay.replays.redact_request", redact_and_note)

    def load(name: str) -> Awaitable[ReplaySource | None]:
        steps.append("begun to load")
        return finish(name)

    async def finish(name: str) -> ReplaySource | None:
        steps.append("awaited")
        return ReplaySource(replay=name, bundle=bundle(name))

    replays = await replays_of(load=load)
    assert (await answer_request(replays, "run-1")).status == 200
    assert steps == ["begun to load", "redacted", "awaited"]


@pytest.mark.parametrize("outcome", ["the same", "another", "none", "an error"])
async def test_a_replay_is_made_while_it_is_asked_whether_its_recording_is_unchanged(outcome: str) -> None:
    first = build_recording(bundle("run-1", "then"), PROFILES)
    likely = ReplaySource(replay="run-1", bundle=bundle("run-1", "then"), recording=first)
    steps: list[str] = []

    async def load(name: str) -> ReplaySource | None:
        steps.append("loaded")
        if outcome == "an error":
            raise OSError("the store server is gone")
        sources = {"the same": likely, "another": ReplaySource(replay=name, bundle=bundle(name, "now"))}
        return sources.get(outcome)

    def begin(replay: str, report: dict[str, Json]) -> bool:
        steps.append("begun")
        return True

    replays = await replays_of(load=load)
    replays.likely_source = {"run-1": likely}.get
    replays.may_begin, replays.forget_begin = begin, lambda _: steps.append("forgotten")
    match outcome:
        case "the same":
            assert (await answer_request(replays, "run-1")).body == model_answer("then").body.data
            assert steps == ["begun", "loaded"]
            assert replays.report("run-1")["served"] == 1
        case "another":
            assert (await answer_request(replays, "run-1")).body == model_answer("now").body.data
            assert steps == ["begun", "loaded", "forgotten", "begun"]
        case "none":
            assert reason(await answer_request(replays, "run-1")) == "unknown_run"
            assert steps == ["begun", "loaded", "forgotten"]
        case _:
            with pytest.raises(OSError, match="store server is gone"):
                await answer_request(replays, "run-1")
            assert steps == ["begun", "loaded", "forgotten"]
            assert not replays.has_begun("run-1")


async def test_what_another_worker_had_begun_stays_interrupted_whatever_its_recording_is_now() -> None:
    then = build_recording(bundle("run-1", "then"), PROFILES)
    load, _ = store(bundle("run-1", "now"))
    replays, forgotten = await replays_of(load=load), list[str]()
    replays.likely_source = lambda name: ReplaySource(replay=name, bundle=bundle(name, "then"), recording=then)
    replays.may_begin, replays.forget_begin = lambda _replay, _report: False, forgotten.append
    assert reason(await answer_request(replays, "run-1")) == "interrupted"
    assert forgotten == []


async def test_a_client_that_leaves_while_its_run_is_loaded_takes_nobody_with_it() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def load(name: str) -> ReplaySource | None:
        begun.set()
        await go_on.wait()
        return ReplaySource(replay=name, bundle=bundle("run-1"))

    replays = await replays_of(load=load)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(answer_request(replays, "run-1"))
        await begun.wait()
        second = group.create_task(answer_request(replays, "run-1"))
        await asyncio.sleep(0)
        first.cancel()
        go_on.set()
    assert second.result().status == 200


async def test_a_store_that_fails_says_so_to_each_who_asks() -> None:
    async def load(name: str) -> ReplaySource | None:
        raise OSError("the store server is gone")

    replays = await replays_of(load=load)
    for _ in range(2):
        with pytest.raises(OSError, match="store server is gone"):
            await answer_request(replays, "run-1")


async def test_on_miss_live_lets_an_unknown_run_go() -> None:
    replays = await replays_of(bundle("run-1"), bundle("run-2"), on_miss="live")
    assert await replays.answer(chat("a"), run="new", owner="x") is None


async def test_two_recordings_of_one_replay_are_refused() -> None:
    replays = await replays_of()
    with pytest.raises(ValueError, match="two recordings were given for same"):
        await replays.start([ReplaySource(replay="same", bundle=bundle(run)) for run in ("run-1", "run-2")])


async def test_reports_are_kept_apart() -> None:
    replays = await replays_of(bundle("run-1"), bundle("run-2"))
    await answer_request(replays, "run-1")
    assert [report["verdict"] for report in replays.reports()] == ["right", "diverged"]
    assert replays.report("replay-1")["served"] == 1


def over(version: str, host: str) -> Exchange:
    return exchange(Request(method="GET", url=f"https://{host}/", http_version=version), model_answer("A"))


async def test_a_host_is_offered_the_protocol_that_was_recorded() -> None:
    replays = await replays_of(run_of(over("HTTP/2.0", "two.test"), over("HTTP/1.1", "one.test:8443")))
    assert replays.recorded_protocols("two.test") == replays.recorded_protocols("two.test:443") == ("h2", "http/1.1")
    assert replays.recorded_protocols("one.test:8443") == ("http/1.1",)
    assert replays.recorded_protocols("other.test") is None


SECRET = "sk-proj-" + "aB3dE6gH9j" * 5


def with_secret(secret: str) -> Request:
    headers = (*JSON, ("Authorization", f"Bearer {secret}"), ("Content-Length", "1"))
    return post(CHAT, chat(f"use {secret} please").body.data, headers)


async def test_a_request_with_secrets_finds_its_redacted_recording() -> None:
    recorded = redact_request(with_secret(SECRET), Redactor(key=KEY))
    assert SECRET not in str(recorded)
    replays = await replays_of(run_of(exchange(recorded, model_answer("A"))))
    assert (await answer_request(replays, None, with_secret(SECRET))).status == 200
    assert replays.report("replay-1")["drift"] == []


async def test_a_machine_with_other_keys_finds_it_as_well() -> None:
    recorded = redact_request(with_secret(SECRET), Redactor(key=KEY))
    replays = await replays_of(run_of(exchange(recorded, model_answer("A"))), key=b"z" * 32)
    other = "sk-proj-" + "zY8xW5vU2t" * 5
    assert (await answer_request(replays, None, with_secret(other))).status == 200
    assert replays.report("replay-1")["drift"] == []


async def test_a_miss_shows_no_secret() -> None:
    replays = await replays_of(bundle("run-1"))
    answer = await answer_request(replays, None, with_secret(SECRET))
    assert reason(answer) == "no_match"
    assert SECRET.encode() not in answer.body
    assert SECRET not in json.dumps(replays.report("replay-1"))


async def test_a_large_request_is_answered_like_a_small_one() -> None:
    large = chat("x" * 600_000)
    replays = await replays_of(run_of(exchange(large, model_answer("A"))))
    assert (await answer_request(replays, None, large)).status == 200
    respelled = post(CHAT, b" " + chat("x" * 600_000).body.data)
    assert reason(await answer_request(replays, None, respelled)) == "consumed"


async def test_a_replay_that_another_worker_had_begun_answers_nothing_and_is_not_right() -> None:
    begun: list[str] = []

    def begin(replay: str, report: dict[str, Json]) -> bool:
        begun.append(replay)
        return False

    replays = await replays_of(bundle("run-1"))
    replays.may_begin = begin
    answers = [await answer_request(replays, None) for _ in range(2)]
    assert [reason(answer) for answer in answers] == ["interrupted", "interrupted"]
    report = replays.report("replay-1")
    assert (report["served"], report["verdict"], report["interrupted"]) == (0, "diverged", True)
    assert begun == ["replay-1"]


async def test_a_replay_that_rested_goes_on_where_it_was() -> None:
    twice = run_of(
        exchange(chat("a"), model_answer("1"), number=1), exchange(chat("a"), model_answer("2"), number=2), run="run-1"
    )
    load, loaded = store(twice)
    replays = await replays_of(load=load)
    clock = [0.0]
    replays.now = lambda: clock[0]
    assert (await answer_request(replays, "run-1")).body == model_answer("1").body.data
    clock[0] = SUSPEND_AFTER - 1
    replays.suspend_idle()
    assert loaded == ["run-1"]
    clock[0] = SUSPEND_AFTER + 1
    replays.suspend_idle()
    assert replays.report("run-1")["served"] == 1
    assert (await answer_request(replays, "run-1")).body == model_answer("2").body.data
    assert loaded == ["run-1", "run-1"]
    assert (replays.report("run-1")["served"], replays.report("run-1")["verdict"]) == (2, "right")


async def test_a_replay_with_effects_rests_unless_a_process_is_connected() -> None:
    batch = EffectBatch("run-1", "e", 0, "0", 0, 1, b'[{"kind":"open","results":["' + b"x" * 4000 + b'"]}]')
    load, loaded = store(replace(bundle("run-1"), effects=(batch,)))
    replays = await replays_of(load=load)
    replays.now = lambda: SUSPEND_AFTER
    assert (await answer_request(replays, "run-1")).status == 200
    effects = await replays.effects_of("run-1")
    assert effects is not None
    effects.note("0", {"served": 1})
    effects.connected += 1
    replays.now = lambda: 2 * SUSPEND_AFTER
    replays.suspend_idle()
    assert replays.is_loaded("run-1")
    effects.connected -= 1
    replays.suspend_idle()
    assert not replays.is_loaded("run-1")
    assert await replays.effects_of("run-1") is not effects
    report = replays.report("run-1")
    assert (report["served"], report["effects"]["served"], loaded) == (1, 1, ["run-1", "run-1"])  # type: ignore[call-overload,index]


async def test_a_replay_whose_run_changed_while_it_rested_does_not_guess() -> None:
    bundles = [bundle("run-1")]

    async def load(name: str) -> ReplaySource | None:
        return ReplaySource(replay=name, bundle=bundles[-1])

    replays = await replays_of(load=load)
    assert (await answer_request(replays, "run-1")).status == 200
    replays.now = lambda: SUSPEND_AFTER
    replays.suspend_idle()
    bundles.append(run_of(exchange(chat("b"), model_answer("B"), number=7), run="run-1"))
    assert reason(await answer_request(replays, "run-1", chat("b"))) == "interrupted"


async def test_a_thousand_small_runs_are_each_loaded_once() -> None:
    runs = [bundle(f"run-{number}") for number in range(1000)]
    load, loaded = store(*runs)
    replays = await replays_of(load=load, after_last="repeat-last")
    for _ in range(3):
        for run in runs:
            assert (await answer_request(replays, str(run.run["id"]))).status == 200
    assert len(loaded) == 1000


async def test_the_memory_of_recordings_is_bounded_and_a_removed_replay_goes_on_where_it_was() -> None:
    runs = [
        run_of(
            exchange(chat("a"), model_answer("1" * 4000), number=1),
            exchange(chat("a"), model_answer("2"), number=2),
            run=f"run-{n}",
        )
        for n in range(4)
    ]
    load, loaded = store(*runs)
    replays = await replays_of(load=load)
    size = build_recording(runs[0], PROFILES).size
    assert 4000 < size < 40_000
    replays.memory_limit = 2 * size
    clock = iter(range(100))
    replays.now = lambda: float(next(clock))
    for name in ("run-0", "run-1", "run-2", "run-3"):
        assert (await answer_request(replays, name)).body == model_answer("1" * 4000).body.data
    assert [replays.is_loaded(f"run-{n}") for n in range(4)] == [False, False, True, True]
    assert replays.report("run-0")["served"] == 1
    assert (await answer_request(replays, "run-0")).body == model_answer("2").body.data
    assert [replays.is_loaded(f"run-{n}") for n in range(4)] == [True, False, False, True]
    assert loaded == ["run-0", "run-1", "run-2", "run-3", "run-0"]


async def test_a_replay_that_is_answering_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    load, _ = store(bundle("run-1", "x" * 1000), bundle("run-2"))
    replays = await replays_of(load=load)
    replays.memory_limit = 1
    entered, leave, answer = asyncio.Event(), asyncio.Event(), Session.answer

    async def wait_and_answer(session: Session, *arguments: Any, **options: Any) -> Answer | None:
        if session.id == "run-1":
            entered.set()
            await leave.wait()
        return await answer(session, *arguments, **options)

    monkeypatch.setattr(Session, "answer", wait_and_answer)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(answer_request(replays, "run-1"))
        await entered.wait()
        assert (await answer_request(replays, "run-2")).status == 200
        assert replays.is_loaded("run-1")
        leave.set()
    assert waiting.result().status == 200


async def test_what_the_process_was_started_with_does_not_rest() -> None:
    replays = await replays_of(bundle("run-1"))
    replays.now = lambda: SUSPEND_AFTER
    replays.suspend_idle()
    assert (await answer_request(replays, None)).status == 200


async def test_a_replay_that_cannot_be_as_it_was_wished_for_says_why() -> None:
    async def load(name: str) -> ReplaySource | None:
        raise UnusableRecording("override 1: there is no step 9")

    answer = await answer_request(await replays_of(load=load), "run-1")
    assert reason(answer) == "unknown_run"
    assert "override 1: there is no step 9" in json.loads(answer.body)["detail"]


async def test_a_replay_may_have_options_of_its_own() -> None:
    own = ReplaySource(replay="fork-1", bundle=bundle("run-1"), options=ReplayOptions(records_answers=True))

    async def load(name: str) -> ReplaySource | None:
        return own if name == "fork-1" else ReplaySource(replay=name, bundle=bundle(name))

    replays = await replays_of(load=load)
    assert (await answer_request(replays, "fork-1")).recorded_outcome == "completed"
    assert (await answer_request(replays, "run-1")).recorded_outcome is None


async def test_a_connection_that_is_refused_before_its_replay_is_loaded_is_in_its_report() -> None:
    bundle = run_of(exchange(chat("a"), model_answer("A")))

    async def load(name: str) -> ReplaySource | None:
        return ReplaySource(replay=name, bundle=bundle)

    replays = await replays_of(load=load)
    replays.note_refused_connection("db.test:5432", "it speaks neither TLS nor HTTP", run="replay-1")
    await replays.answer(chat("a"), run="replay-1", owner="local")
    replays.note_refused_connection("db.test:5432", "it speaks neither TLS nor HTTP", run="replay-1")
    assert replays.report("replay-1")["refused"] == 2
    assert replays.report("replay-1")["verdict"] == "diverged"
