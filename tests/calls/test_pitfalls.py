"""The pitfalls of canonicalisation that were measured on real traffic, each by its number in the wire report (C).

One short test for each row; most have more, with all the spellings, in `test_key` and in the tests of their dialects.
"""

import base64
import gzip
import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.derive import derive_call
from calls.keys.explain import explain_key
from calls.keys.key import make_key, raw_digest
from calls.model import Exchange, Request, Response
from calls.retry_grouping import Attempt, group_retries
from replay.script import RecordedExchange, Script, build_index
from store.bundle.bundle import Entry
from store.bundle.exchange_summary import summarize_exchange
from tests.calls.keys.test_coding_agents import BILLING
from tests.calls.keys.test_key import turn, upload
from tests.calls.recorded import body
from tests.calls.sample_requests import (
    ANTHROPIC,
    OPENAI,
    PROFILES,
    TICKETS,
    VERSION,
    chat,
    explained_key,
    json_request,
    key,
    request,
    user,
)

GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:generateContent"
RESPONSES = "https://api.openai.com/v1/responses"
MCP = "https://mcp.example.com/mcp"

ROWS = [*map(str, range(1, 23)), "14b"]


def test_every_row_is_a_test() -> None:
    named = {name.split("_")[1] for name in globals() if name.startswith("test_") and name.split("_")[1][:1].isdigit()}
    assert named == set(ROWS)


def exchange(asked: Request, answer: bytes = b"{}", media: str = "application/json", **more: Any) -> Exchange:
    recorded = Response(status=200, headers=(("content-type", media),), body=body(answer))
    made = Exchange(
        id="0198c1d2-0000-7000-8000-000000000000",
        run="run",
        request=asked,
        response=recorded,
        outcome="completed",
        started_at=0,
        first_byte_at=0,
        ended_at=1,
    )
    return replace(made, **more)


def one_key(*asked: Request) -> bool:
    return len({make_key(one, PROFILES).key for one in asked}) == 1


def test_1_the_meaning_counts_and_not_the_bytes() -> None:
    spaced, compact = (json.dumps(chat(user("hi")), separators=form).encode() for form in ((" , ", " : "), (",", ":")))
    assert spaced != compact
    assert key(OPENAI, spaced) == key(OPENAI, compact)


@pytest.mark.parametrize(
    ("one", "other"), [("1", "1.0"), ("1", "1e0"), ("100", "1E2"), ("1.10", "1.1"), ("-0.0", "0"), ("0.7", "7e-1")]
)
def test_2_a_number_has_one_key(one: str, other: str) -> None:
    bodies = [f'{{"model":"m","temperature":{number}}}'.encode() for number in (one, other)]
    assert key(OPENAI, bodies[0]) == key(OPENAI, bodies[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.3", repr(0.1 + 0.2)),
        ("0.7", "0.699999988079071"),  # float32 in between
        ("9007199254740993", "9007199254740992"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("1e400", "1e401"),
        ("1e-400", "0"),
    ],
)
def test_2_numbers_that_are_nearly_the_same_have_two(one: str, other: str) -> None:
    bodies = [f'{{"vector":[{number}]}}'.encode() for number in (one, other)]
    assert key(TICKETS, bodies[0]) != key(TICKETS, bodies[1])


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_2_a_double_that_is_written_again_is_the_same(value: float) -> None:
    text = repr(value)
    spelled = [text, f"{Decimal(text):e}", f"{Decimal(text):f}"]
    assert len({key(TICKETS, f'{{"vector":[{one}]}}'.encode()) for one in spelled}) == 1


def test_3_two_members_of_one_name_count_by_their_bytes() -> None:
    made = explained_key(OPENAI, b'{"model":"a","model":"b"}')
    assert "two members of the same name" in made.warnings[0]
    assert made.key != key(OPENAI, b'{"model":"b","model":"a"}')


def test_4_escapes_are_spelling_and_half_a_pair_counts_by_its_bytes() -> None:
    assert key(OPENAI, b'{"model":"\\u00e9\\uD83D\\uDE00\\/"}') == key(OPENAI, '{"model":"é😀/"}'.encode())
    made = explained_key(OPENAI, b'{"model":"\\ud83d"}')
    assert "a lone surrogate" in made.warnings[0]
    assert made.key != key(OPENAI, b'{"model":"\\ud83e"}')


def test_5_unicode_is_not_normalised() -> None:
    assert key(OPENAI, chat(user("é"))) != key(OPENAI, chat(user("e\u0301")))
    assert key(OPENAI, chat(user("ﬁ"))) != key(OPENAI, chat(user("fi")))


def test_6_null_is_absent_where_the_api_says_so_and_not_in_a_tool_s_own_data() -> None:
    assert key(OPENAI, chat(temperature=None)) == key(OPENAI, chat())
    for own in ({"enum": [None, 1]}, {"default": None}, {"const": None}):
        less = {name: value for name, value in own.items() if value is not None}
        tools = [
            [{"type": "function", "function": {"name": "f", "parameters": one}}] for one in (own, {**less, "x": 0})
        ]
        assert key(OPENAI, chat(tools=tools[0])) != key(OPENAI, chat(tools=tools[1]))
    assert key(OPENAI, turn("c", '{"a": null}')) != key(OPENAI, turn("c", "{}"))


def test_7_a_single_text_part_is_its_text_unless_it_says_more() -> None:
    part = {"type": "text", "text": "hi"}
    assert key(OPENAI, chat(user([part]))) == key(OPENAI, chat(user("hi")))
    assert key(ANTHROPIC, chat(user([part])), VERSION) == key(ANTHROPIC, chat(user("hi")), VERSION)
    assert key(OPENAI, chat(user([{**part, "annotations": [1]}]))) != key(OPENAI, chat(user("hi")))


def test_8_the_order_of_tools_and_of_what_they_require_counts_and_that_of_members_does_not() -> None:
    def tools(*required: str, order: int = 1) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": list(required)}
        made = {"name": "f", "parameters": dict([*schema.items()][::order])}
        return chat(tools=[{"type": "function", "function": made}])

    assert key(OPENAI, tools("a", "b")) == key(OPENAI, tools("a", "b", order=-1))
    assert key(OPENAI, tools("a", "b")) != key(OPENAI, tools("b", "a"))
    assert key(OPENAI, chat(tools=[{"a": 1}, {"b": 1}])) != key(OPENAI, chat(tools=[{"b": 1}, {"a": 1}]))


@pytest.mark.parametrize("name", ["call_9aVzuv", "toolu_01XFDUDYJg", "chatcmpl-tool-0ab", "tooluse_abc"])
def test_9_ids_of_a_provider_count_by_where_they_occur(name: str) -> None:
    assert key(OPENAI, turn(name, "{}")) == key(OPENAI, turn("call_other", "{}"))


def test_10_ids_that_a_client_makes_up_count_by_where_they_occur() -> None:
    def chat_with_call(name: str) -> dict[str, Any]:
        call = {"functionCall": {"id": name, "name": "f", "args": {}}}
        answer = {"functionResponse": {"id": name, "name": "f", "response": {}}}
        return {"contents": [{"role": "model", "parts": [call]}, {"role": "user", "parts": [answer]}]}

    one, other = "pyd_ai_9f8e7d6c5b4a39281706f5e4d3c2b1a0", "pyd_ai_00112233445566778899aabbccddeeff"
    assert key(GEMINI, chat_with_call(one)) == key(GEMINI, chat_with_call(other))
    assert key(OPENAI, turn(one, "{}")) == key(OPENAI, turn(other, "{}"))
    rpc = [{"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "f"}} for number in (1, "x-2")]
    accepts = ("accept", "application/json, text/event-stream")
    assert key(MCP, rpc[0], accepts) == key(MCP, rpc[1], accepts)
    assert key(OPENAI, chat(prompt_cache_key="agents-sdk:run:1")) == key(
        OPENAI, chat(prompt_cache_key="agents-sdk:run:2")
    )
    assert key(OPENAI, chat(user(one))) != key(OPENAI, chat(user(other))), "in prose an id is prose"


def test_11_a_thought_that_is_encrypted_anew_in_every_copy_does_not_count() -> None:
    def chat_with_thought(blob: str, summary: str = "s") -> dict[str, Any]:
        item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": summary}]}
        return {"model": "m", "input": [{**item, "encrypted_content": blob}]}

    assert key(RESPONSES, chat_with_thought("gAAAAABo")) == key(RESPONSES, chat_with_thought("gAAAAABp"))
    assert key(RESPONSES, chat_with_thought("gAAAAABo")) != key(RESPONSES, chat_with_thought("gAAAAABo", "other"))


def test_12_bytes_count_in_either_alphabet_padded_or_not() -> None:
    data = bytes(range(250, 256)) * 11
    spelled = [base64.b64encode(data), base64.urlsafe_b64encode(data), base64.urlsafe_b64encode(data).rstrip(b"=")]

    def chat_with_signature(signature: str) -> dict[str, Any]:
        return {"contents": [{"role": "model", "parts": [{"text": "hi", "thoughtSignature": signature}]}]}

    assert len({key(GEMINI, chat_with_signature(one.decode())) for one in spelled}) == 1
    assert key(GEMINI, chat_with_signature("AAAA")) != key(GEMINI, chat_with_signature("AAAB"))


def test_13_media_counts_by_its_bytes_and_as_what_it_is() -> None:
    def picture(data: bytes, media: str = "image/png") -> dict[str, Any]:
        url = f"data:{media};base64,{base64.b64encode(data).decode()}"
        return chat(user([{"type": "image_url", "image_url": {"url": url}}]))

    assert key(OPENAI, picture(b"one")) != key(OPENAI, picture(b"two"))
    assert key(OPENAI, picture(b"one")) != key(OPENAI, picture(b"one", "image/gif"))
    shown = explain_key(explained_key(OPENAI, picture(bytes(500_000)))).rows
    assert max(len(row.value) for row in shown) < 200


@pytest.mark.parametrize("said", ["Today is 2026-11-22.", "Run 7f1c9a52-6a52-4c8e-9d9b-0f3a1c5b7e11."])
def test_14_what_is_said_in_a_prompt_counts_whatever_it_looks_like(said: str) -> None:
    assert key(OPENAI, chat(user(said))) != key(OPENAI, chat(user(said.replace("2", "3"))))


def test_14b_a_nonce_within_the_system_prompt_does_not_count() -> None:
    one, other = (chat(user("hi"), system=BILLING.format(n, n) + "\nYou are Claude Code.") for n in ("a", "b"))
    assert key(ANTHROPIC, one, VERSION) == key(ANTHROPIC, other, VERSION)


def make_script(*asked: Request) -> Script:
    steps = [exchange(one, b'{"n":%d}' % n, id=f"e{n}", started_at=n * 9, run=str(n)) for n, one in enumerate(asked)]
    return Script(build_index([_entry(step, one) for step, one in enumerate(steps, 1)]))


def _entry(step: int, one: Exchange) -> RecordedExchange:
    return RecordedExchange(
        step=step,
        key=make_key(one.request, PROFILES).key,
        raw=raw_digest(one.request),
        summary=summarize_exchange(Entry(exchange=one)),
    )


def matched_steps(script: Script, asked: Iterable[Request]) -> list[int]:
    found = [script.take_next(make_key(one, PROFILES).key, raw_digest(one)) for one in asked]
    return [one.recorded.step for one in found if one]


def test_15_equal_requests_are_answered_in_their_order() -> None:
    asked = json_request(OPENAI, chat(user("again")))
    assert matched_steps(make_script(asked, asked, asked), [asked] * 4) == [1, 2, 3]


def test_16_requests_of_parallel_branches_may_come_in_any_order() -> None:
    asked = [json_request(OPENAI, chat(user(word))) for word in ("a", "b", "a")]
    assert matched_steps(make_script(*asked), [asked[1], asked[0], asked[0]]) == [2, 1, 3]


def test_17_a_query_counts_by_its_decoded_pairs_in_any_order() -> None:
    spelled = ("?a=x%3Ay&b=1", "?b=1&a=x:y", "?b=1&a=x%3ay")
    assert one_key(*(request(TICKETS + query, method="GET") for query in spelled))


def test_18_headers_of_an_sdk_do_not_count() -> None:
    noise = [
        ("x-stainless-retry-count", "2"),
        ("amz-sdk-invocation-id", "a"),
        ("traceparent", "00-b"),
        ("user-agent", "c"),
    ]
    assert one_key(json_request(OPENAI, chat()), json_request(OPENAI, chat(), *noise))


def test_19_a_call_that_was_tried_again_is_one_call() -> None:
    asked = make_key(json_request(OPENAI, chat()), PROFILES).key
    again = make_key(json_request(OPENAI, chat(), ("x-stainless-retry-count", "1")), PROFILES).key

    def part(name: str, key: str, started_at: int, status: int) -> Attempt:
        ended = started_at + 10**9
        return Attempt(
            id=name,
            key=key,
            started_at=started_at,
            ended_at=ended,
            status=status,
            outcome="completed",
            complete=True,
            polls=None,
            pending=None,
        )

    [call] = group_retries([part("a", asked, 0, 429), part("b", again, 2 * 10**9, 200)])
    assert (call.ids, call.attempts) == (("a", "b"), 2)


def test_20_padding_in_a_stream_is_no_part_of_the_answer() -> None:
    def stream(padding: str) -> bytes:
        result = (
            {"object": "chat.completion.chunk", "obfuscation": padding}
            if padding
            else {"object": "chat.completion.chunk"}
        )
        delta = {"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        return b"data: " + json.dumps({"id": "1", **result, "choices": [delta]}).encode() + b"\n\ndata: [DONE]\n\n"

    asked = json_request(OPENAI, chat(user("hi"), stream=True))
    made = [derive_call(exchange(asked, stream(padding), "text/event-stream"), PROFILES) for padding in ("", "aQ7x")]
    assert {one.text for one in made} == {"hi"}
    assert made[0].key == made[1].key


def test_21_a_compressed_body_counts_by_what_it_says() -> None:
    plain = json.dumps(chat(user("hi"))).encode()
    packed = json_request(OPENAI, gzip.compress(plain, mtime=0), ("content-encoding", "gzip"))
    assert one_key(packed, json_request(OPENAI, plain))


def test_22_json_in_arguments_counts_by_its_value_and_nowhere_else() -> None:
    assert key(OPENAI, turn("c", '{"a": 1, "b": 1e0}')) == key(OPENAI, turn("c", '{"b":1,"a":1.0}'))
    assert key(OPENAI, chat(user('{"a": 1}'))) != key(OPENAI, chat(user('{"a":1}')))


EXTREMES = {
    "nothing": b"",
    "null": b"null",
    "a scalar": b"7",
    "NaN": b'{"model":"m","seed":NaN}',
    "infinity": b'{"model":"m","seed":-Infinity}',
    "1e400": b'{"model":"m","seed":1e400}',
    "an exponent beyond all bounds": b'{"seed":1e99999999999999999999}',
    "5,000 digits": b'{"model":"m","seed":%s}' % (b"9" * 5000),
    "a byte order mark": b'\xef\xbb\xbf{"model":"m"}',
    "UTF-16": '{"model":"m"}'.encode("utf-16"),
    "UTF-16, big-endian": '{"model":"é"}'.encode("utf-16-be"),
    "UTF-32": '{"model":"m"}'.encode("utf-32"),
    "no UTF-8": b'{"model":"\xff"}',
    "NUL": b'{"model":"\\u0000"}\0',
    "100,000 lists": b"[" * 100_000 + b"]" * 100_000,
    "100,000 objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "100,000 lists without an end": b"[" * 100_000,
    "100,000 lists in arguments": json.dumps(turn("c", "[" * 100_000)).encode(),
    "the first half of a pair": b'{"model":"\\ud800"}',
    "a pair the wrong way round": b'{"model":"\\udc00\\ud800"}',
    "half a pair as a name": b'{"\\udfff":1}',
    "two of a name": b'{"model":"m","model":"m"}',
    "two of a name, deep": b'{"model":"m","tools":[{"a":{"b":1,"b":2}}]}',
    "two of a name, one escaped": b'{"model":"m","mode\\u006c":"m"}',
    "cut off": b'{"model":"m","messages":[{"role":"us',
}
PLACES = [OPENAI, ANTHROPIC, RESPONSES, GEMINI, MCP, TICKETS, "https://api.example.com/graphql"]


@pytest.mark.parametrize("url", PLACES)
def test_nothing_is_too_odd_to_have_a_key_of_its_own(url: str) -> None:
    asked = [json_request(url, data) for data in EXTREMES.values()]
    made = [make_key(one, PROFILES) for one in asked]
    assert len({one.key for one in made}) == len(EXTREMES)
    assert len({one.strict_key for one in made}) == len(EXTREMES)
    for one in made:
        assert explain_key(one).key == one.key


@pytest.mark.parametrize(
    "name", [name for name in EXTREMES if name not in ("nothing", "null", "a scalar", "1e400", "5,000 digits")]
)
def test_what_cannot_be_read_without_guessing_says_so(name: str) -> None:
    if name == "100,000 lists in arguments":
        assert explained_key(OPENAI, EXTREMES[name]).warnings == (), "a text is a text"
    else:
        assert "raw bytes" in explained_key(OPENAI, EXTREMES[name]).warnings[0]


def test_names_in_two_spellings_are_one_only_where_the_api_takes_both() -> None:
    one, other = ({"contents": [], name: {"topK": 1}} for name in ("generationConfig", "generation_config"))
    assert key(GEMINI, one) == key(GEMINI, other)
    assert key(OPENAI, chat(max_tokens=1)) != key(OPENAI, chat(maxTokens=1))
    args = [{"contents": [{"parts": [{"functionCall": {"name": "f", "args": {name: 1}}}]}]} for name in ("a_b", "aB")]
    assert key(GEMINI, args[0]) != key(GEMINI, args[1]), "names in a tool's own data are its own"


def test_parts_of_an_upload_count_without_the_boundary_between_them() -> None:
    assert one_key(upload("x1", "a"), upload("y2", "a"))
    assert not one_key(upload("x1", "a"), upload("x1", "b"))


def test_a_document_of_graphql_counts_by_what_it_asks() -> None:
    url = "https://api.example.com/graphql"
    queries = ["query Q($n: Int) { user(first: $n) { name } }", "# all\nquery Q($n:Int){user(first:$n){name}}"]
    assert one_key(*(json_request(url, {"query": one, "variables": {"n": 1}}) for one in queries))
    assert not one_key(*(json_request(url, {"query": queries[0], "variables": {"n": n}}) for n in (1, 2)))
