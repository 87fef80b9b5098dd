"""Search in answers: the check of the bytes never rejects an answer that contains the words."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Body, Response
from store.query.answer_search import can_contain, searchable_text

CHAT = "openai_chat"


def answer(body: bytes, content_type: str = "application/json", encoding: str | None = None) -> Response:
    headers = (("Content-Type", content_type), *([("Content-Encoding", encoding)] if encoding else []))
    return Response(status=200, headers=headers, body=Body(data=body, size=len(body)))


def chat(text: str, **arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": text, "tool_calls": [call]}
    return {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": {}}


@given(
    st.text(st.sampled_from('aBkßſKé "\\/<1.\n'), max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([json.dumps, lambda value: json.dumps(value, ensure_ascii=False, indent=0)]),
    st.sampled_from([(None, bytes), ("gzip", gzip.compress)]),
)
def test_an_answer_that_holds_the_words_is_read(
    text: str, start: int, end: int, written: Callable[[Any], str], packed: tuple[str | None, Callable[[bytes], bytes]]
) -> None:
    encoding, pack = packed
    response = answer(pack(written(chat(text, q=text, n=1.50)).encode()), encoding=encoding)
    everything = searchable_text(CHAT, response)
    words = everything[start:][:end]
    assert can_contain(words, response)


@pytest.mark.parametrize("words", ["rain", "look_up parcel", "the sun, the moon"])
def test_one_that_cannot_hold_them_is_not(words: str) -> None:
    assert not can_contain(words, answer(json.dumps(chat("the sun", q="refund")).encode()))


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'data: {"choices":[{"delta":{"content":"ra"}}]}', "text/event-stream"),
        (b'[{"text":"ra"},{"text":"in"}]', "application/json"),
        (b'{"text":"ra"}\n{"text":"in"}', "application/json"),
        (b'{"text":"ra"}\n{"text":"in"}', "application/x-ndjson"),
    ],
)
def test_words_may_come_in_pieces(body: bytes, content_type: str) -> None:
    assert can_contain("rain", answer(body, content_type))
