"""Which parts of two answers must agree for them to be the same."""

from decimal import Decimal

import pytest
from hypothesis import example, given
from msgspec.structs import replace

from calls.codec.json import dumps, parse_json
from calls.codec.lenient_json import as_object
from calls.comparison import answer_fingerprint
from calls.comparison.answer_fingerprint import answer_digest, answer_meaning, word_set
from calls.derive import derive_call
from calls.model import Exchange, Json
from store.active_profiles import load_profiles
from tests.calls.strategies import json_values
from tests.replay import strategies
from tests.store.agents import Agent
from tests.store.samples import body, exchange

PROFILES = load_profiles(None)


def digest_of(each: Exchange) -> str:
    return answer_digest(each, derive_call(each, PROFILES))


def meaning_of(each: Exchange) -> object:
    return answer_meaning(derive_call(each, PROFILES))


def test_ids_times_counts_and_models_are_no_part_of_what_a_model_says() -> None:
    one, other = Agent().run("one")[0], Agent(model="gpt-6", fingerprint=lambda turn: "fp_2").run("other")[0]
    assert one.response != other.response
    assert digest_of(one) == digest_of(other)


def test_the_arguments_of_a_tool_are() -> None:
    one, other = Agent().run("one")[0], Agent(asks=lambda turn: "another").run("one")[0]
    assert digest_of(one) != digest_of(other)


def test_an_empty_text_beside_tool_calls_is_none() -> None:
    """A stream has one where the same answer as a whole has null: an agent that begins to stream is no drift of its model."""
    made = Agent().run("one")[0]
    call = derive_call(made, PROFILES)
    assert call.tool_calls
    assert call.text is None
    assert answer_digest(made, replace(call, text="")) == answer_digest(made, call)
    assert answer_digest(made, replace(call, text=" ")) != answer_digest(made, call)
    wordless, nothing = (replace(call, text=text, tool_calls=()) for text in ("", None))
    assert answer_digest(made, wordless) != answer_digest(made, nothing)


def test_what_a_tool_says_counts_whole() -> None:
    assert digest_of(exchange(response=b'{"id": 1}')) != digest_of(exchange(response=b'{"id": 2}'))
    assert digest_of(exchange(response=b'{"id": 1, "a": 2}')) == digest_of(exchange(response=b'{"a":2,"id":1}'))


def test_so_does_an_answer_that_is_no_text() -> None:
    assert digest_of(exchange(response=b"\x89\x00")) != digest_of(exchange(response=b"\x89\x01"))


@given(json_values)
@example({"b": "\x7f", "a": "é", "": ['\x1f/\\"', True, None, 10**20]})
@example([Decimal("1.50"), Decimal("1E+5"), {}, []])
def test_the_faster_writer_writes_the_same(value: Json) -> None:
    read = parse_json(dumps(value))
    assert answer_fingerprint._write_answer(read) == answer_fingerprint._write(read).encode()


def test_a_status_and_a_cut_count() -> None:
    whole = exchange()
    assert whole.response is not None
    assert digest_of(whole) != digest_of(replace(whole, response=replace(whole.response, status=500)))
    assert digest_of(whole) != digest_of(replace(whole, outcome="server_closed"))


@pytest.mark.parametrize("ended", [True, False])
def test_when_a_client_left_does_not_count_where_a_stream_had_its_own_end(ended: bool) -> None:
    whole = strategies.exchange(strategies.chat("a", stream=True), strategies.said_in_a_stream("A", ended=ended))
    assert (digest_of(replace(whole, outcome="client_closed")) == digest_of(whole)) is ended
    late = replace(whole, outcome="client_closed", ended_at=30 * strategies.SECOND)
    assert digest_of(late) != digest_of(whole), "it waited for HTTP's end and gave up, as Anthropic's SDK does"


def test_nor_where_an_error_broke_the_stream_off() -> None:
    whole = strategies.exchange(strategies.chat("a", stream=True), strategies.failed_in_a_stream("A"))
    assert digest_of(replace(whole, outcome="client_closed")) == digest_of(whole)
    assert digest_of(whole) != digest_of(replace(whole, response=strategies.said_in_a_stream("A")))


def test_a_request_of_json_rpc_has_a_number_that_its_answer_repeats() -> None:
    made = [
        exchange(
            request=b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"add"}}' % number,
            response=b'{"jsonrpc":"2.0","id":%d,"result":{"content":[]}}' % number,
        )
        for number in (1, 2)
    ]
    assert digest_of(made[0]) == digest_of(made[1])


def test_words_do_not_depend_on_who_wrote_them_down() -> None:
    assert word_set({"found": "Zürich 21"}) == word_set('{"found":"Z\\u00fcrich 21"}') == {"zürich", "21"}
    assert word_set([None, True, 1.5, "a-b"]) == {"1", "5", "a", "b"}


def test_thoughts_count() -> None:
    answer = b'{"choices":[{"message":{"role":"assistant","content":"x","reasoning_content":"%s"}}]}'
    url = "https://api.openai.com/v1/chat/completions"
    one, other = (
        replace(made, response=replace(made.response, body=body(answer % thought)))
        for thought in (b"so", b"thus")
        if (made := exchange(url=url, request=b'{"model":"m","messages":[]}')).response is not None
    )
    assert "thoughts" in dict(meaning_of(one))  # type: ignore[call-overload]
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize(
    "answer",
    [
        {"output": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "THOUGHT"}]}]},
        {"output": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "THOUGHT"}]}]},
        {"candidates": [{"content": {"parts": [{"thought": True, "text": "THOUGHT"}, {"text": "said"}]}}]},
        {"output": {"message": {"content": [{"reasoningContent": {"reasoningText": {"text": "THOUGHT"}}}]}}},
        {
            "choices": [
                {"message": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "THOUGHT"}]}]}}
            ]
        },
        {"choices": [{"message": {"content": "said", "reasoning_content": "THOUGHT"}}]},
    ],
)
def test_two_runs_are_compared_with_the_thoughts_of_every_api(answer: dict[str, Json]) -> None:
    call = replace(derive_call(exchange(0), PROFILES), kind="model", text="said", answer=answer)
    assert as_object(answer_meaning(call, has_all_thoughts=True))["thoughts"] == ["THOUGHT"]
    odd = replace(call, answer={"type": {}, "thought": {"text": 1}, "reasoning": [None, {"text": {}}]})
    assert "thoughts" not in as_object(answer_meaning(odd, has_all_thoughts=True))


def test_stored_digests_stay_comparable() -> None:
    """Those of the calls that are stored already are compared with those of new calls."""
    answer: dict[str, Json] = {"output": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}]}
    call = replace(derive_call(exchange(0), PROFILES), kind="model", text="said", answer=answer)
    assert answer_digest(exchange(0), call) == answer_digest(exchange(0), replace(call, answer={"output": []}))
