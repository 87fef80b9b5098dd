"""What was said in a run: of each prompt what is new in it, and tool calls with their results."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from calls.derive import derive_call
from calls.model import Call, Exchange
from store.timeline.conversation import MOST_MESSAGES, make_conversation
from store.timeline.facts import SpokenCall, ToolLinks
from store.timeline.from_exchanges import read_facts
from store.timeline.prompt_history import EarlierPrompts, read_prompt
from store.timeline.texts import LONGEST_TEXT, MOST_CHARACTERS
from tests.store.agents import Agent
from tests.store.running_store import PROFILES


def no_cost(_: Exchange, __: Call) -> None:
    return None


def say(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def chat(number: int, messages: Sequence[Any], answer: str = "ok", **more: Any) -> SpokenCall:
    request = {"model": "gpt-5", "messages": list(messages)}
    facts: dict[str, Any] = {"kind": "model", "actor": None, "request": request, "text": answer}
    return SpokenCall(call=f"call-{number}", number=number, **(facts | more))


MESSAGES = st.lists(st.builds(say, st.sampled_from(["user", "assistant", "tool"]), st.sampled_from("abc")), max_size=5)


@given(st.lists(st.tuples(MESSAGES, st.integers(0, 8), st.sampled_from([None, "worker"])), max_size=12))
def test_the_repeated_and_the_new_messages_make_the_prompt(turns: Sequence[tuple[list[Any], int, str | None]]) -> None:
    """Whatever an agent does with its history: it grows, is cut, is rewritten, or several agents talk at once."""
    history = EarlierPrompts()
    prompts: dict[str, Any] = {}
    sent: list[Any] = []
    for number, (new, kept, actor) in enumerate(turns):
        sent = sent[:kept] + new
        call = chat(number, sent, actor=actor)
        found = history.add(call)
        before = [] if found.after is None else prompts[found.after.call]
        assert found.after is None or found.after.actor == actor
        assert [*before[: found.repeated], *found.messages] == list(read_prompt(call).messages)
        assert found.repeated + found.dropped == len(before)
        prompts[call.call] = list(read_prompt(call).messages)


@given(st.lists(MESSAGES.filter(bool), min_size=1, max_size=8))
def test_the_new_messages_of_a_branch_make_its_last_prompt(turns: Sequence[list[Any]]) -> None:
    history = EarlierPrompts()
    sent: list[Any] = []
    new: list[Any] = []
    for number, messages in enumerate(turns):
        sent = [*sent, *messages]
        follows = [f"call-{number - 1}"] if number else []
        new += history.add(chat(number, sent, follows=follows)).messages
    assert new == list(read_prompt(chat(99, sent)).messages)


def test_interleaved_chats_are_distinguished_by_their_beginnings() -> None:
    history = EarlierPrompts()
    one, other = [say("user", "one")], [say("user", "other")]
    for number in range(6):
        mine = one if number % 2 else other
        found = history.add(chat(number, mine))
        assert len(found.messages) == (1 if number < 2 else 2)
        mine += [say("assistant", "ok"), say("user", f"and {number}")]


def test_tool_calls_lead_to_their_results() -> None:
    exchanges = Agent(turns=3).run("one")
    facts = read_facts([(one, derive_call(one, PROFILES)) for one in exchanges], no_cost)
    items = make_conversation(facts.spoken, facts.links)
    assert [one["step"] for one in items] == [1, 2, 3, 4, 5, 6]
    asked = items[0]["answer"]["tool_calls"][0]
    assert (asked["name"], asked["executed_by"], asked["answered_by"]) == ("search", 2, 3)
    assert items[1]["executes"] == {"step": 1, "call": exchanges[0].id, "tool_call": asked["id"]}
    assert "tools.example.com/search" in items[1]["request"]["text"]
    prompt = items[2]["prompt"]
    assert (prompt["after"]["step"], prompt["repeated"], prompt["new"]) == (1, 2, 2)
    echo, result = prompt["messages"]
    assert echo["echo"] == 1
    assert result["role"] == "tool"
    assert (result["parts"][0]["asked_by"], result["parts"][0]["executed_by"]) == (1, 2)
    assert result["parts"][0]["name"] == "search"


def test_texts_are_cut_and_their_size_is_said() -> None:
    long = "x" * (LONGEST_TEXT + 5)
    items = make_conversation([chat(1, [say("user", long)], long)], ToolLinks())
    part = items[0]["prompt"]["messages"][0]["parts"][0]
    assert (len(part["text"]), part["size"], part["cut"]) == (LONGEST_TEXT, LONGEST_TEXT + 5, True)
    assert items[0]["answer"]["text"]["cut"]


def test_without_texts_only_sizes_are_said() -> None:
    exchanges = Agent(turns=2).run("one")
    facts = read_facts([(one, derive_call(one, PROFILES)) for one in exchanges], no_cost)
    items = make_conversation(facts.spoken, facts.links, shows_texts=False)
    assert len(items) == 4
    assert "subject" not in json.dumps(items)
    assert items[0]["prompt"]["messages"][0]["parts"][0]["size"] == len("Be brief.")


def test_a_document_is_bounded() -> None:
    many = [say("user", f"{number} " + "x" * LONGEST_TEXT) for number in range(MOST_MESSAGES + 10)]
    one = make_conversation([chat(1, many)], ToolLinks())[0]["prompt"]
    assert (one["new"], one["left_out"], len(one["messages"])) == (MOST_MESSAGES + 10, 10, MOST_MESSAGES)
    assert one["messages"][-1]["index"] == MOST_MESSAGES + 9
    calls = [
        chat(number, [say("user", f"{number}{item}" + "x" * LONGEST_TEXT) for item in range(50)])
        for number in range(50)
    ]
    items = make_conversation(calls, ToolLinks())
    assert 0 < len(items) <= MOST_CHARACTERS // (50 * LONGEST_TEXT) + 1


def test_a_large_call_is_said_to_be_large() -> None:
    items = make_conversation([chat(1, [], is_large=True), chat(2, [say("user", "a")])], ToolLinks())
    assert [one["too_large"] for one in items] == [True, False]
    assert items[0]["prompt"] is None


def test_an_answer_has_the_reasoning_before_it_as_far_as_the_reader_may_read() -> None:
    message = {"role": "assistant", "content": "ok", "reasoning_content": "First I look. " * 1000}
    call = chat(1, [say("user", "hi")], answer="ok")
    thoughtful = replace(call, answer={"choices": [{"index": 0, "message": message}]})
    [shape] = make_conversation([thoughtful], ToolLinks())
    reasoning = shape["answer"]["reasoning"]
    assert (reasoning["size"], reasoning["cut"]) == (14_000, True)
    assert reasoning["text"].startswith("First I look. ")
    [withheld] = make_conversation([thoughtful], ToolLinks(), shows_texts=False)
    assert withheld["answer"]["reasoning"] == {"text": None, "size": 14_000, "cut": False}
    [plain] = make_conversation([call], ToolLinks())
    assert plain["answer"]["reasoning"] is None
