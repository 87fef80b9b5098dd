"""Comparisons of two runs: each cause of a difference, and what follows from it."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from calls.model import Exchange
from proxy.terminal.render_diff import show_diff
from proxy.terminal.table import Sheet
from store.active_profiles import load_profiles
from store.diff.diff import compare_runs
from store.diff.steps import StepReader
from tests.store.agents import Agent, interleave
from tests.store.samples import exchange

READING = StepReader(profiles=load_profiles(None), clean=str)


def diff(one: Agent | Sequence[Exchange], other: Agent | Sequence[Exchange], **more: Any) -> dict[str, Any]:
    sides = [side.run(name) if isinstance(side, Agent) else side for side, name in ((one, "one"), (other, "other"))]
    return compare_runs(("one", sides[0]), ("other", sides[1]), READING, **more)


def causes(answer: dict[str, Any]) -> list[str]:
    """Return the causes of all pairs in order, including the equal ones before the first difference."""
    return ["same"] * answer["equal_prefix"] + [pair["cause"] for pair in answer["pairs"]]


def test_other_ids_and_times_are_no_difference() -> None:
    difference = diff(Agent(), Agent())
    assert difference["same"] is True
    assert difference["equal_prefix"] == 8
    assert difference["cause"] is None
    assert difference["delta"] == {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0, "duration_ms": 0}


def test_a_tool_that_answers_otherwise_is_the_cause_of_what_follows() -> None:
    result = diff(Agent(), Agent(finds=lambda turn: {"found": "nothing at all" if turn == 1 else f"alpha {turn} beta"}))
    assert causes(result) == ["same", "same", "same", "tool_answer", "follows", "same", "follows", "same"]
    assert result["cause"]["a_step"] == result["cause"]["b_step"] == 4
    assert result["cause"]["leads_to"] == 2
    [difference] = result["pairs"][0]["answer"]
    assert (difference["pointer"], difference["a"], difference["b"]) == ("/found", "alpha 1 beta", "nothing at all")
    assert result["pairs"][1]["follows"] == {"a_step": 4, "b_step": 4}


def test_a_tool_whose_answer_changes_nothing_is_not_blamed_for_what_a_model_did() -> None:
    times = {1: "monday", 2: "friday"}

    def noisy(run: int) -> list[Exchange]:
        first = exchange(response=b'{"now": "%s"}' % times[run].encode(), at=1)
        asks = "another thing" if run == 2 else "subject"
        return [first, *Agent(asks=lambda turn: asks).run(f"run-{run}")]

    difference = diff(noisy(1), noisy(2))
    assert difference["first"]["cause"] == "tool_answer"
    assert difference["first"]["leads_to"] == 0
    assert difference["cause"]["cause"] == "answer"
    assert difference["cause"]["a_step"] == 2


def test_a_model_that_answers_otherwise_is_sampling() -> None:
    difference = diff(Agent(), Agent(asks=lambda turn: "something else" if turn == 1 else f"subject-{turn} details"))
    assert causes(difference) == ["same", "same", "answer", "follows", "follows", "same", "follows", "same"]


def test_an_answer_that_an_override_edited_is_not_called_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    fork = Agent(asks=lambda turn: "something else" if turn == 1 else f"subject-{turn} details").run("other")
    response = fork[2].response
    assert response is not None
    fork[2] = replace(fork[2], response=replace(response, headers=(*response.headers, ("Playhead", "edited; step=3"))))
    difference = diff(Agent(), fork)
    assert causes(difference) == ["same", "same", "answer", "follows", "follows", "same", "follows", "same"]
    assert difference["cause"]["words"].endswith(": the request is the same, and an override edited its answer in B")
    assert [difference["pairs"][0][side]["edited"] for side in ("a", "b")] == [False, True]
    show_diff(difference, Sheet(width=200, colour=False))
    assert "  edited in B " in capsys.readouterr().out


def test_a_request_that_repeats_other_thoughts_follows_from_the_answer_that_had_them() -> None:
    url = "https://api.openai.com/v1/responses"

    def thinking(thought: str, offset: int) -> list[Exchange]:
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "7"}]}
        output = [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": thought}]}, said]
        asked: list[Any] = [{"role": "user", "content": "How many?"}]
        again = [*asked, *output, {"role": "user", "content": "Sure?"}]
        answers = [
            {"object": "response", "model": "m", "status": "completed", "output": one} for one in (output, [said])
        ]
        return [
            exchange(
                offset + number,
                url=url,
                request=json.dumps({"model": "m", "input": given}).encode(),
                response=json.dumps(answer).encode(),
            )
            for number, (given, answer) in enumerate(zip((asked, again), answers, strict=True))
        ]

    found = diff(thinking("I count primes.", 0), thinking("Enumerating them by hand.", 10))
    assert causes(found) == ["answer", "follows"]


def test_another_prompt_is_the_cause_also_of_all_later_requests_that_repeat_it() -> None:
    result = diff(Agent(), Agent(system="Be brief!"))
    assert causes(result) == ["prompt", "same", "follows", "same", "follows", "same", "follows", "same"]
    [difference] = result["pairs"][0]["request"]
    assert difference["pointer"] == "/body/messages/0/content"
    assert ["gone", "."] in difference["words"]
    assert ["come", "!"] in difference["words"]


def test_a_prompt_that_changes_after_an_answer_did_is_a_cause_of_its_own() -> None:
    one = Agent(turns=2).run("one")
    other = Agent(turns=2, finds=lambda turn: {"found": "nothing"}).run("other")
    sent = other[2].request.body.data.replace(b"Be brief.", b"Be precise.")
    other[2] = replace(other[2], request=replace(other[2].request, body=replace(other[2].request.body, data=sent)))
    assert causes(diff(one, other)) == ["same", "tool_answer", "prompt", "tool_answer"]


def test_another_model_is_named_once_and_found_in_every_later_call() -> None:
    difference = diff(Agent(), Agent(model="gpt-5-2026-09-09"))
    assert causes(difference) == ["model", "same"] * 4
    assert difference["cause"]["leads_to"] == 3
    assert "gpt-5-2026-01-01 (fp_1) in A, gpt-5-2026-09-09 (fp_1) in B" in difference["cause"]["words"]


def test_so_is_another_fingerprint() -> None:
    assert diff(Agent(), Agent(fingerprint=lambda turn: "fp_2"))["cause"]["cause"] == "model"


def test_what_the_key_leaves_out_is_shown_and_is_the_same() -> None:
    result = diff(Agent(), Agent(extra={"user": "somebody"}))
    assert result["same"] is True
    assert result["counts"] == {"volatile": 4, "same": 4}
    assert [difference["pointer"] for difference in result["pairs"][0]["volatile"]] == ["/body/user"]


def test_a_call_that_fails_on_one_side_failed_and_was_not_sampled() -> None:
    difference = diff(Agent(), Agent(status=lambda turn: 500 if turn == 3 else 200))
    assert causes(difference)[6] == "failure"
    assert "with 200 in A, with 500 in B" in difference["cause"]["words"]


def test_added_repeated_and_missing_calls_are_distinguished_from_changed_ones() -> None:
    repeated = diff(Agent(), Agent(repeated=frozenset({1})))
    assert repeated["counts"] == {"same": 8, "extra": 1}
    assert [pair["b"]["step"] for pair in repeated["pairs"] if pair["cause"] == "extra"] == [5]
    assert diff(Agent(repeated=frozenset({1})), Agent())["counts"] == {"same": 8, "missing": 1}


def test_of_a_run_that_ends_early_is_said_where_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    calls = Agent(turns=6).run("whole")
    found = diff(calls, Agent(turns=6).run("cut")[:5])
    assert found["first"]["words"].endswith("only A has this call, B ends before it")
    show_diff(found, Sheet(width=200, colour=False))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("-")] == [["-", "6"], ["-", "6"]]
    assert "- 6 more calls only in A" in lines
    assert diff(calls[:5], calls)["first"]["words"].endswith("only B has this call, A ends before it")


def test_of_runs_that_both_end_with_calls_of_their_own_neither_ended_early() -> None:
    [*calls, last], [*_, other] = Agent().run("one"), Agent(finds=lambda turn: 0).run("another")
    other = replace(other, request=replace(other.request, url="https://mail.example.com/send"))
    found = diff([*calls, last], [*calls, other])
    assert [pair["words"] for pair in found["pairs"]] == ["only A has this call", "only B has this call"]


def test_a_call_that_was_tried_again_is_equal_and_its_attempts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    calls = Agent().run("one")
    failed = Agent(status=lambda turn: 503, offset=-1).run("failed")[0]
    found = diff(calls, [failed, *calls])
    assert (found["same"], found["a"]["retries"], found["b"]["retries"]) == (True, 0, 1)
    show_diff(found, Sheet(width=200, colour=False))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "attempt" not in first
    assert "8 calls  1 further attempt" in second


def test_a_turn_more_in_the_middle_does_not_shift_the_rest() -> None:
    """All later requests differ, because they repeat the new turn; they are aligned by the part that is new in each."""
    longer = [0, 1, 9, 2, 3]
    difference = diff(
        Agent(turns=4),
        Agent(
            turns=5,
            asks=lambda turn: f"subject-{longer[turn]} details",
            finds=lambda turn: {"found": f"alpha {longer[turn]} beta"},
        ),
    )
    tools = [
        (pair["a"]["step"], pair["b"]["step"])
        for pair in difference["pairs"]
        if pair["a"] and pair["b"] and pair["a"]["kind"] == "tool"
    ]
    assert tools == [(6, 8), (8, 10)]
    assert difference["counts"]["extra"] == 2


def test_agents_that_run_side_by_side_are_compared_each_by_itself() -> None:
    def both(order: tuple[int, int]) -> list[Exchange]:
        first, second = (Agent(actor=name, system=name, offset=shift) for name, shift in zip("xy", order, strict=True))
        return interleave(first.run("one"), second.run("one"))

    difference = diff(both((0, 5)), both((5, 0)))
    assert difference["same"] is True
    assert difference["equal_prefix"] == 16


def test_calls_in_another_order_differ_unless_they_ran_at_the_same_time() -> None:
    def calls(order: str, apart: int) -> list[Exchange]:
        return [
            exchange(number, at=1_795_262_400_000_000_000 + number * apart, request=letter.encode())
            for number, letter in enumerate(order)
        ]

    assert "order" in diff(calls("abc", 10**9), calls("bac", 10**9))["counts"]
    assert diff(calls("abc", 10**6), calls("bac", 10**6))["same"] is True


def test_what_is_too_much_to_look_at_is_said_to_be_so() -> None:
    difference = diff(Agent(turns=6), Agent(turns=6, system="Other."), most_examined=2)
    assert difference["counts"]["unexamined"] == 4
    assert {pair["words"] for pair in difference["pairs"] if pair["cause"] is None} == {
        "the calls differ, and were not examined"
    }


def test_a_run_in_which_nothing_was_recorded_can_be_compared() -> None:
    assert diff([], [])["same"] is True
    assert diff([], Agent(turns=1))["counts"] == {"extra": 2}


def test_a_secret_that_only_an_assembled_answer_has_is_not_shown() -> None:
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % part for part in (b"sk-12", b"34abc")]
    stream = b"".join([*events, b"data: [DONE]\n\n"])
    url = "https://api.openai.com/v1/chat/completions"
    made = exchange(url=url, request=b'{"model":"m","messages":[],"stream":true}', response=stream)
    assert made.response is not None
    streamed = replace(made, response=replace(made.response, headers=(("content-type", "text/event-stream"),)))
    reading = dataclasses.replace(READING, clean=lambda text: text.replace("sk-1234abc", "PLAYHEAD"))
    other = exchange(url=url, request=b'{"model":"m","messages":[],"stream":true}')
    difference = compare_runs(("one", [streamed]), ("other", [other]), reading)
    assert "PLAYHEAD" in str(difference)
    assert "sk-1234abc" not in str(difference)


def test_a_streamed_answer_is_the_same_as_a_whole_one() -> None:
    """An agent that begins to stream gets the same tool calls, beside an empty text in place of none."""

    def tool_call(name: str) -> dict[str, Any]:
        return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": '{"q": "refund"}'}}

    def stream_of(name: str) -> Exchange:
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": ""},
            {"tool_calls": [{"index": 0, **tool_call(name)}]},
        ]
        choices: list[dict[str, Any]] = [{"delta": delta} for delta in deltas]
        choices.append({"delta": {}, "finish_reason": "tool_calls"})
        events = [json.dumps({"choices": [{"index": 0, **choice}]}).encode() for choice in choices]
        made = ask(
            b'{"model":"m","messages":[],"stream":true}',
            b"".join(b"data: %s\n\n" % one for one in [*events, b"[DONE]"]),
        )
        assert made.response is not None
        return replace(made, response=replace(made.response, headers=(("content-type", "text/event-stream"),)))

    def ask(request: bytes, response: bytes) -> Exchange:
        return exchange(url="https://api.openai.com/v1/chat/completions", request=request, response=response)

    message = {"role": "assistant", "content": None, "tool_calls": [tool_call("search")]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    whole = ask(b'{"model":"m","messages":[]}', json.dumps({"choices": [choice]}).encode())
    assert diff([whole], [stream_of("search")])["same"] is True
    assert causes(diff([whole], [stream_of("delete")])) == ["answer"]


def test_how_much_two_clients_had_of_the_same_answer_when_they_left_is_chance() -> None:
    whole = exchange(response=b"twelve bytes and more", at=1)
    early, late, other = (_client_left(whole, said) for said in (b"twelve", b"twelve bytes", b"eleven"))
    assert diff([early], [late])["same"] is True
    assert causes(diff([early], [other])) == ["tool_answer"]
    assert causes(diff([early], [whole])) == ["failure"]


def _client_left(whole: Exchange, said: bytes) -> Exchange:
    assert whole.response is not None
    body = replace(whole.response.body, data=said, size=len(said))
    return replace(whole, outcome="client_closed", response=replace(whole.response, body=body))
