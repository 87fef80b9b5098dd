"""The explanation of a key: fates, rules and shortened values."""

from typing import get_args

from calls.codec.json import dumps
from calls.keys.explain import PREVIEW, RULES, ExplanationRow, explain_key
from calls.keys.rules import Rule
from tests.calls.sample_requests import OPENAI, TICKETS, chat, explained_key, user


def rows(made: object) -> dict[str, ExplanationRow]:
    return {row.pointer: row for row in explain_key(made).rows}  # type: ignore[arg-type] # it is what `how` makes


def test_every_part_of_a_request_is_accounted_for() -> None:
    call = {"id": "call_x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    body = chat(
        user([{"type": "text", "text": "hi"}]),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        stream=True,
        user="u",
        seed=None,
        brand_new=1,
    )
    shown = rows(explained_key(OPENAI, body))
    assert {pointer: row.fate for pointer, row in shown.items()} == {
        "/method": "key",
        "/upstream": "key",
        "/path": "key",
        "/form": "key",
        "/body/model": "key",
        "/body/messages": "key",
        "/body/brand_new": "unknown",
        "/body/messages/0/content": "folded",
        "/body/messages/1/tool_calls/0/function/arguments": "folded",
        "/body/messages/1/tool_calls/0/id": "renamed",
        "/body/messages/1/content": "left out",
        "/body/stream": "left out",
        "/body/user": "left out",
        "/body/seed": "left out",
        "/headers/*": "left out",
    }
    assert shown["/body/messages/1/tool_calls/0/id"].value == "call_x → id:1"
    assert "transient" in shown["/body/stream"].rule


def test_long_values_are_cut_to_a_glance() -> None:
    assert len(rows(explained_key(OPENAI, chat(user("x" * 500))))["/body/messages"].value) == PREVIEW


def test_a_long_name_is_cut_wherever_it_is_shown() -> None:
    name = "n" * 100_000
    for request in (
        explained_key(TICKETS, {name: 1}),
        explained_key(TICKETS + f"?{name}=1", {}),
        explained_key(OPENAI, chat(**{name: 1})),
    ):
        assert len(dumps(explain_key(request).as_json())) < 10_000


def test_a_query_is_shown_where_there_is_one() -> None:
    assert rows(explained_key(TICKETS + "?a=1&sig=x", {}))["/query"].value == '[["a","1"]]'
    assert rows(explained_key(TICKETS + "?a=1&sig=x", {}))["/query/sig"].fate == "left out"


def test_every_rule_has_words() -> None:
    names = {
        name
        for rule in get_args(Rule.__value__)
        for name in ([rule] if isinstance(rule, str) else get_args(rule.__value__))
    }
    assert names - {"id"} <= set(RULES) | {"key"}


def test_the_same_as_json() -> None:
    shown = explain_key(explained_key(OPENAI, chat())).as_json()
    assert set(shown) == {"key", "strict", "profile", "dialect", "operation", "rows", "warnings"}
