"""A workflow as plain code: recorded, replayed, changed, bisected, resumed."""

import asyncio
import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playhead import Workflow, effects, parallel, parallel_async
from playhead.workflow import BadTrace, ModelError, NotRecordable, StepFailed, Trace, UnownedEffect
from playhead.workflow.values import Json


class Model:
    """Answers by a function of the text that it is asked, and counts."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.requests: list[Mapping[str, Json]] = []

    def __call__(self, request: Mapping[str, Json]) -> Mapping[str, Json]:
        self.requests.append(request)
        messages: Any = request["messages"]
        return {"text": self.answer(messages[-1]["content"])}


def answer(text: str) -> str:
    return "REFUND" if "money" in text else f"You said: {text}"


def route(intent: str) -> dict[str, str]:
    return {"queue": intent.lower()}


def refunds(model: Model, routing: Callable[[str], Any] = route) -> Workflow:
    flow = Workflow("refunds", ask=model)
    flow.step("classify", model="gpt-4o", temperature=0)
    flow.step("route", fn=routing)
    flow.step("respond", model="claude-haiku-4-5")
    return flow


def test_the_founding_example_replays_without_asking() -> None:
    model = Model(answer)
    trace = refunds(model).run("Where is my money?", seed=42)
    assert trace.output == 'You said: {"queue": "refund"}'
    assert [request["model"] for request in model.requests] == ["gpt-4o", "claude-haiku-4-5"]
    assert model.requests[0]["temperature"] == 0
    replay = trace.replay()
    assert replay
    assert str(replay) == "equal: 3 steps and 2 effects, as recorded"
    assert replay.trace == trace
    trace.assert_equal()
    assert len(model.requests) == 2


def test_changed_code_is_reported_with_its_step_and_place() -> None:
    model = Model(answer)
    trace = refunds(model).run("Where is my money?")
    replay = refunds(model, lambda intent: {"queue": intent.lower() + "s"}).replay(trace)
    assert not replay
    assert replay.difference is not None
    assert replay.difference.step == "route"
    assert str(replay) == (
        'not as recorded: step `route`: its output differs at /queue: recorded "refund", now "refunds"'
    )
    assert len(model.requests) == 2


def test_a_changed_prompt_is_reported_with_the_line_of_its_step() -> None:
    model = Model(answer)
    flow = Workflow("one", ask=model)
    flow.step("respond", model="m", prompt="Answer: {input}")
    other = Workflow("one", ask=model)
    other.step("respond", model="m", prompt="Answer kindly: {input}")
    replay = other.replay(flow.run("Hello"))
    assert str(replay).startswith(
        'not as recorded: what model in `respond` asks differs at /messages/0/content: recorded "Answer: Hello", now "Answer kindly: Hello"'
    )
    assert f"{Path(__file__).name}:" in str(replay)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "c", "b"], "step 2 is `c` now and was `b`: the steps were reordered"),
        (["a", "x", "c"], "step 2 was recorded as `b` and is `x` now: it was renamed, or replaced"),
        (["a", "x", "b", "c"], "step 2, `x`, is new: the recording has `b` there"),
        (["a", "b"], "step `c` is in the recording and not in the workflow"),
        (["a", "b", "c", "d"], "step `d` is new: the recording ends before it"),
    ],
)
def test_steps_match_by_name_and_order_not_by_luck(names: list[str], message: str) -> None:
    def steps(names: list[str]) -> Workflow:
        flow = Workflow("abc")
        for name in names:
            flow.step(name, fn=lambda value: value)
        return flow

    assert str(steps(names).replay(steps(["a", "b", "c"]).run(1))) == f"not as recorded: {message}"


def test_every_effect_is_given_from_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "policy.txt"
    file.write_text("30 days")
    monkeypatch.setenv("REGION", "EU")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-to-be-recorded")
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    def collect(_: Any) -> list[Any]:
        effects.sleep(3)
        found = [effects.now(), effects.random(), effects.uuid(), effects.read(file), effects.env("REGION")]
        assert effects.env("OPENAI_API_KEY") is not None
        return [*found, effects.env("NOT_SET", "default"), effects.read(file, None)]

    flow = Workflow("effects")
    flow.step("collect", fn=collect)
    trace = flow.run(seed=1)
    saved = tmp_path / "trace.json"
    trace.save(saved)
    assert "sk-not" not in saved.read_text()
    file.unlink()
    monkeypatch.delenv("REGION")
    loaded = Trace.load(saved, flow)
    assert loaded == trace
    assert loaded.replay(), str(loaded.replay())
    assert slept == [3]
    assert loaded.output == trace.output
    assert loaded.output[3:] == ["30 days", "EU", "default", b"30 days"]
    assert isinstance(loaded.output[0], datetime)
    assert uuid.UUID(loaded.output[2]).version == 4
    again = flow.run
    file.write_text("30 days")
    assert again(seed=1).output[1:3] == trace.output[1:3]
    assert again(seed=2).output[1:3] != trace.output[1:3]


def test_an_effect_that_was_not_recorded_is_reported_with_its_line_and_the_last_recorded_one() -> None:
    flow, other = Workflow("w"), Workflow("w")
    flow.step("s", fn=lambda _: [effects.random()])
    other.step("s", fn=lambda _: [effects.random(), effects.uuid()])
    replay = other.replay(flow.run())
    assert "`s` asks for uuid null; the recording has 1 effects there, the last is at" in str(replay)
    third = Workflow("w")
    third.step("s", fn=lambda _: [effects.uuid()])
    assert "asks for uuid null where the recording has random null, recorded at" in str(third.replay(flow.run()))
    fourth = Workflow("w")
    fourth.step("s", fn=lambda _: [0.5])
    assert "its output differs at /0" in str(fourth.replay(flow.run()))


def test_an_unused_recorded_effect_is_reported() -> None:
    def ask_time(_: Any) -> None:
        effects.now()

    flow, other = Workflow("w"), Workflow("w")
    flow.step("s", fn=ask_time)
    other.step("s", fn=lambda _: None)
    assert "step `s` no longer asks for now null, recorded at" in str(other.replay(flow.run()))


def test_an_error_that_the_agent_catches_is_still_reported() -> None:
    def careful(_: Any) -> str:
        try:
            return str(effects.env("A"))
        except Exception:  # noqa: BLE001 - what agents do
            return "hidden"

    flow, other = Workflow("w"), Workflow("w")
    flow.step("s", fn=lambda _: str(effects.env("B")))
    other.step("s", fn=careful)
    assert 'what env in `s` asks differs at /name: recorded "B", now "A"' in str(other.replay(flow.run()))


def test_twenty_branches_in_any_real_order_replay_alike() -> None:
    order: list[int] = []

    def branch(number: int) -> Callable[[], list[Any]]:
        def work() -> list[Any]:
            first = effects.uuid()
            time.sleep(random.random() / 200)
            order.append(number)
            return [number, first, effects.random(), *parallel(effects.uuid, effects.random)]

        return work

    flow = Workflow("branches")
    flow.step("fetch", fn=lambda _: parallel(*map(branch, range(20))))
    trace = flow.run()
    assert [each[0] for each in trace.output] == list(range(20))
    for _ in range(20):
        replay = trace.replay()
        assert replay, str(replay)
        assert replay.trace.output == trace.output
    assert len({tuple(order[start : start + 20]) for start in range(0, len(order), 20)}) > 1


def test_of_several_failures_the_first_branch_s_is_raised_after_all_have_ended() -> None:
    ended = threading.Event()

    def late() -> None:
        time.sleep(0.01)
        ended.set()
        raise KeyError("first")

    def early() -> None:
        raise ValueError("second")

    with pytest.raises(KeyError):
        parallel(late, early)
    assert ended.is_set()


def test_a_failing_step_is_tried_again_and_its_failures_are_recorded() -> None:
    failures = iter([True, True, False])

    def flaky(text: str) -> str:
        if next(failures):
            raise ModelError("answered 503")
        return text

    flow = Workflow("retries", ask=Model(flaky))
    flow.step("ask", model="m", retries=2)
    trace = flow.run("hello")
    assert trace.output == "hello"
    assert [effect.error for effect in trace.steps[0].effects] == ["ModelError: answered 503"] * 2 + [None]
    assert trace.replay()


def test_a_run_that_failed_is_a_record_too() -> None:
    def refuse(_: Any) -> None:
        raise ValueError(f"no policy {effects.env('POLICY')}")

    flow = Workflow("fails")
    flow.step("first", fn=lambda value: value + 1)
    flow.step("second", fn=refuse)
    with pytest.raises(StepFailed, match="step `second` failed: ValueError: no policy None") as caught:
        flow.run(1)
    trace = caught.value.trace
    assert (trace.status, trace.error, trace.output) == ("failed", "ValueError: no policy None", 2)
    assert trace.replay()
    mended = Workflow("fails")
    mended.step("first", fn=lambda value: value + 1)
    mended.step("second", fn=lambda _: effects.env("POLICY"))
    assert "its error differs" in str(mended.replay(trace))


def test_a_step_may_be_skipped_and_may_read_earlier_outputs() -> None:
    flow = Workflow("skips")
    flow.step("one", fn=lambda value: value + 1)
    flow.step("two", fn=lambda _: 1 / 0, when=lambda value: value > 10)
    flow.step("three", fn=lambda value, outputs: [value, outputs])
    trace = flow.run(1)
    assert trace.step("two").is_skipped
    assert trace.output == [2, {"one": 2}]
    assert trace.replay()


def test_a_step_cannot_change_what_another_was_given() -> None:
    def spoil(value: dict[str, int]) -> dict[str, int]:
        value["n"] += 1
        return value

    flow = Workflow("spoils")
    flow.step("one", fn=spoil)
    flow.step("two", fn=spoil)
    trace = flow.run({"n": 0})
    assert (trace.step("one").output, trace.step("two").input, trace.output) == ({"n": 1}, {"n": 1}, {"n": 2})
    assert trace.replay()


def test_bisect_names_the_effect_that_makes_the_difference() -> None:
    rates = {"EUR": "1.1"}
    model = Model(answer)

    def price(_: Any) -> str:
        effects.uuid()
        rate = float(effects.env("RATE") or 1)
        return "cheap" if rate < 2 else "dear"

    def flow(environment: pytest.MonkeyPatch, rate: str, seed: int) -> Trace:
        environment.setenv("RATE", rate)
        made = Workflow("prices", ask=model)
        made.step("intent", model="m")
        made.step("price", fn=price)
        made.step("write", model="m")
        return made.run("money", seed=seed)

    with pytest.MonkeyPatch.context() as environment:
        good, bad = flow(environment, rates["EUR"], 1), flow(environment, "9", 2)
    asked = len(model.requests)
    found = good.bisect(bad)
    assert found.effect is not None
    assert (found.effect.kind, found.effect.result) == ("env", "9")
    assert "env in `price` makes the difference" in str(found)
    assert 'its answer differs: recorded "1.1", now "9"' in str(found)
    assert len(model.requests) == asked
    assert not good.bisect(good)
    differences = [str(difference) for difference in good.diff(bad)]
    assert any(each.startswith("the answer of uuid in `price` differs") for each in differences)
    assert any('step `price`: the output differs: recorded "cheap", now "dear"' in each for each in differences)
    assert good.diff(good) == []


def test_a_run_waits_for_a_person_and_goes_on_with_refactored_code(tmp_path: Path) -> None:
    model = Model(answer)

    def build(approve: Callable[[Any], Any]) -> Workflow:
        flow = Workflow("approval", ask=model)
        flow.step("classify", model="m")
        flow.step("approve", fn=approve)
        flow.step("write", model="m")
        return flow

    def approve(intent: str) -> str:
        ticket = effects.uuid()
        return f"{ticket}: {effects.input(f'Approve {intent}?')}"

    trace = build(approve).run("money")
    assert trace.status == "waiting"
    assert trace.waiting is not None
    assert (trace.waiting.step, trace.waiting.prompt) == ("approve", "Approve REFUND?")
    assert trace.replay(), str(trace.replay())
    file = tmp_path / "approval.json"
    trace.save(file)

    def approve_in_other_words(intent: str) -> str:
        def question() -> Any:
            return effects.input("Approve " + intent + "?")

        number = effects.uuid()
        return ": ".join((number, question()))

    later = build(approve_in_other_words)
    done = later.resume(Trace.load(file), "yes", by="ann")
    assert done.status == "done"
    assert done.output.endswith(": yes")
    [_, person] = done.step("approve").effects
    assert (person.result, person.answered_by) == ("yes", "ann")
    assert person.answered_at is not None
    assert datetime.fromisoformat(person.answered_at).tzinfo == UTC
    assert len(model.requests) == 2
    assert done.replay(), str(done.replay())

    parted = build(lambda intent: effects.input(f"Really approve {intent}?"))
    with pytest.raises(RuntimeError, match="the code is not what it was when the workflow stopped"):
        parted.resume(Trace.load(file), "yes")
    with pytest.raises(ValueError, match="does not wait for an answer: it is done"):
        later.resume(done, "yes")


def test_two_branches_may_wait_one_after_the_other() -> None:
    flow = Workflow("two")
    flow.step("ask", fn=lambda _: parallel(lambda: effects.input("One?"), lambda: effects.input("Two?")))
    first = flow.run()
    assert first.waiting is not None
    assert first.waiting.prompt == "One?"
    second = flow.resume(first, 1)
    assert second.waiting is not None
    assert second.waiting.prompt == "Two?"
    assert flow.resume(second, 2).output == [1, 2]


@pytest.mark.parametrize(
    ("code", "use"),
    [
        (lambda _: time.time(), "effects.now()"),
        (lambda _: datetime.now(UTC).isoformat(), "effects.now()"),
        (lambda _: random.random(), "effects.random()"),
        (lambda _: random.choice([1, 2]), "effects.random()"),
        (lambda _: str(uuid.uuid4()), "effects.uuid()"),
        (lambda _: open(__file__).close(), "effects.read()"),
        (lambda _: Path(__file__).read_text()[:1], "effects.read()"),
        (lambda _: __import__("os").environ["PATH"], "effects.env()"),
        (lambda _: __import__("socket").create_connection(("127.0.0.1", 9)), "effects.http()"),
    ],
)
def test_the_guard_names_the_line_of_an_effect_that_nothing_records(code: Callable[[Any], Any], use: str) -> None:
    flow = Workflow("guarded", guard=True)
    flow.step("s", fn=code)
    with pytest.raises(StepFailed) as caught:
        flow.run()
    assert isinstance(caught.value.__cause__, UnownedEffect), caught.value
    assert use in str(caught.value)
    assert f"{Path(__file__).name}:" in str(caught.value)


def test_the_guard_lets_pure_code_and_owned_effects_pass() -> None:
    def work(_: Any) -> list[Any]:
        generator = random.Random(7)
        return [
            json.dumps({"a": 1}),
            generator.random(),
            effects.now().year > 2000,
            effects.read(__file__)[:1],
            sorted([2, 1]),
        ]

    flow = Workflow("guarded", guard=True)
    flow.step("s", fn=work)
    assert flow.run().replay()


def test_what_is_no_plain_data_is_refused_with_its_place() -> None:
    flow = Workflow("w")
    flow.step("s", fn=lambda _: {"ticket": [object()]})
    with pytest.raises(StepFailed, match=r"the output of step `s` has a object at /ticket/0: use str, int") as caught:
        flow.run()
    assert isinstance(caught.value.__cause__, NotRecordable)
    with pytest.raises(NotRecordable, match="the input of the workflow has a set at /"):
        flow.run({1})


async def test_coroutine_steps_run_in_the_loop_of_the_program_and_are_replayed_in_whatever_order() -> None:
    loops: list[object] = []
    spread = [0.01, 0.0]

    async def branch(number: int) -> str:
        await asyncio.sleep(spread[number % 2])
        return f"{number} {effects.uuid()}"

    async def fetch(value: str) -> list[str]:
        loops.append(asyncio.get_running_loop())
        return [value, *await parallel_async(*(partial(branch, number) for number in range(4)))]

    flow = Workflow("w")
    flow.step("fetch", fn=fetch)
    flow.step("count", fn=len)
    trace = await flow.run_async("x", seed=1)
    assert (loops, trace.output) == ([asyncio.get_running_loop()], 5)
    assert [effect.place for effect in trace.step("fetch").effects] == [f"fetch/0/{number}" for number in range(4)]
    spread.reverse()
    # Also where a loop is running already.
    assert trace.replay(), trace.replay()
    assert (await asyncio.to_thread(flow.run, "x", seed=1)).steps == trace.steps
    flow.steps[0] = replace(flow.steps[0], fn=partial(fetch_nothing, "y"))
    assert "step `fetch`: its output differs" in str(trace.replay())


async def fetch_nothing(found: str, _value: str) -> str:
    return found


async def test_a_coroutine_that_asks_a_person_waits_and_goes_on() -> None:
    async def ask(value: str) -> list[str]:
        return await parallel_async(lambda: other(value), approve)

    async def other(value: str) -> str:
        return value

    async def approve() -> str:
        return str(effects.input("Refund?"))

    flow = Workflow("w")
    flow.step("ask", fn=ask)
    trace = await flow.run_async("x")
    assert trace.status == "waiting"
    assert trace.waiting is not None
    assert trace.waiting.place == "ask/0/1"
    assert flow.resume(trace, "yes").output == ["x", "yes"]


def test_declarations_that_cannot_work_are_refused() -> None:
    flow = Workflow("w")

    with pytest.raises(TypeError, match="needs either fn= or model="):
        flow.step("s")
    with pytest.raises(TypeError, match="temperature is for a model"):
        flow.step("s", fn=route, temperature=0)
    flow.step("s", fn=route)
    with pytest.raises(ValueError, match="there is a step `s` already"):
        flow.step("s", fn=route)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": "playhead-workflow/1"}', '{"format": "playhead-workflow/9"}']
)
def test_a_file_that_is_no_trace_is_one_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(content)
    with pytest.raises(BadTrace):
        Trace.load(file)


def test_effects_outside_of_a_workflow_do_what_they_say(tmp_path: Path) -> None:
    assert effects.now().tzinfo is not None
    assert effects.uuid() != effects.uuid()
    assert effects.random() != effects.random()
    with pytest.raises(FileNotFoundError):
        effects.read(tmp_path / "none")
    with pytest.raises(RuntimeError, match="no terminal on which a person could answer"):
        effects.input("Well?")


def test_a_missing_file_is_missing_in_the_replay_too(tmp_path: Path) -> None:
    file = tmp_path / "late.txt"

    def read(_: Any) -> str:
        try:
            return effects.read(file)
        except FileNotFoundError as error:
            return str(error)

    flow = Workflow("w")
    flow.step("s", fn=read)
    trace = flow.run()
    file.write_text("now there is one")
    assert trace.replay(), str(trace.replay())
