"""Ids that a client mints anew, in what the server says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.json import dumps
from calls.model import Json
from replay.reframing.id_rewrite import remove_ids, rewrite_ids
from tests.calls.strategies import json_values


@pytest.mark.parametrize("member", ["id", "item_id", "previous_item_id", "stream_id", "sessionId"])
def test_an_id_is_replaced_where_ids_stand(member: str) -> None:
    assert rewrite_ids(dumps({"item": [{member: "a"}]}), {"a": "b"}) == dumps({"item": [{member: "b"}]})


@pytest.mark.parametrize("member", ["text", "delta", "valid", "type"])
def test_the_same_text_elsewhere_is_what_somebody_said(member: str) -> None:
    data = b'{ "' + member.encode() + b'":"a" }'
    assert rewrite_ids(data, {"a": "b"}) == data


@given(st.binary(max_size=40) | json_values.map(dumps), st.dictionaries(st.text(max_size=2), st.text(max_size=2)))
def test_no_message_surprises(data: bytes, names: dict[str, str]) -> None:
    rewrite_ids(data, names)


@given(json_values)
def test_without_names_a_message_stays_to_the_byte(message: object) -> None:
    data = b" " + dumps(message)  # type: ignore[arg-type] # it is JSON
    assert rewrite_ids(data, {}) == data


def test_a_message_without_ids_and_times_is_what_it_says() -> None:
    said: Json = {
        "type": "x",
        "event_id": "e",
        "response": {"id": "r", "created_at": 1, "output": [{"id": "i", "text": "t"}]},
    }
    assert remove_ids(said) == {"type": "x", "response": {"output": [{"text": "t"}]}}
