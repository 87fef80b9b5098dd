"""Fixtures of llm-fixture-replay: which lines can be replayed as HTTP, and which cannot."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.foreign.contents import REBUILT, Found, Interaction, NotReadable, SkippedEntry
from store.foreign.jsonl import read_jsonl

MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "3"}]}
CHAT = {"id": "chatcmpl-1", "object": "chat.completion", "choices": []}
ASKED = {"model": "example-large", "max_tokens": 64, "messages": [{"role": "user", "content": "1 + 2?"}]}


def line(response: Any, args: tuple[Any, ...] = (), kwargs: Any = None, **other: Any) -> bytes:
    """Return a line as `FixtureBox` writes it."""
    kwargs = kwargs or {}
    made = {
        "hash": hashlib.sha256(repr((args, dict(sorted(kwargs.items())))).encode()).hexdigest(),
        "args_repr": repr(args),
        "kwargs_repr": repr(dict(sorted(kwargs.items()))),
        "response_json": response,
        "recorded_at": "2026-05-01T10:00:00+00:00",
    }
    return json.dumps(made | other).encode()


def only(content: bytes) -> Found:
    [one] = read_jsonl([content])
    return one


@pytest.mark.parametrize(
    ("answer", "url"),
    [
        (MESSAGE, "https://api.anthropic.com/v1/messages"),
        (CHAT, "https://api.openai.com/v1/chat/completions"),
        ({"object": "response", "output": []}, "https://api.openai.com/v1/responses"),
    ],
)
def test_the_call_of_an_sdk_becomes_the_request_that_it_sends(answer: Any, url: str) -> None:
    one = only(line(answer, kwargs=ASKED | {"timeout": 5}))
    assert isinstance(one, Interaction), one
    assert (one.request.method, one.request.url) == ("POST", url)
    assert json.loads(one.request.body.data) == ASKED
    assert json.loads(one.response.body.data) == answer
    assert one.started_at == 1777629600 * 10**9
    assert REBUILT in one.notes


def test_a_line_of_key_and_response_is_read_where_the_key_is_the_request() -> None:
    for result in ({"key": ASKED, "response": CHAT}, {"request": ASKED, "response": CHAT}):
        one = only(json.dumps(result).encode())
        assert isinstance(one, Interaction)
        assert json.loads(one.request.body.data) == ASKED


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (line("3", args=("1 + 2?",)), "it has positional arguments"),
        (line("3", kwargs=ASKED), "its answer is not that of a model API"),
        (json.dumps({"key": "e3b0c442", "response": CHAT}).encode(), "a digest of its request instead of the request"),
        (line(CHAT, kwargs_repr="{'client': <openai.OpenAI object at 0x7f>}"), "contain Python objects"),
        (line(CHAT, kwargs_repr="{'a': b'1'}"), "not JSON"),
        (line(CHAT, kwargs_repr="__import__('os').system('true')"), "contain Python objects"),
        (b'{"response_json": ', "it is not JSON"),
        (b'{"hash": "a"}', "it has no response"),
        (b'{"hash": 5, "response_json": 1}', "its key is neither"),
    ],
)
def test_a_line_that_nothing_on_the_wire_can_match_says_why(content: bytes, words: str) -> None:
    bad, good = read_jsonl([content, line(CHAT, kwargs=ASKED)])
    assert isinstance(bad, SkippedEntry)
    assert words in bad.reason
    assert isinstance(good, Interaction)


def test_of_equal_calls_the_newest_line_counts_as_it_does_for_its_own_library() -> None:
    old, new = line({**CHAT, "id": "old"}, kwargs=ASKED), line({**CHAT, "id": "new"}, kwargs=ASKED)
    [one] = read_jsonl([old, new])
    assert isinstance(one, Interaction)
    assert json.loads(one.response.body.data)["id"] == "new"


def test_an_empty_file_is_none() -> None:
    with pytest.raises(NotReadable):
        read_jsonl([b"\n"])


members = st.sampled_from(["hash", "key", "request", "response", "response_json", "args_repr", "kwargs_repr", "url"])


@given(st.dictionaries(members, st.text(max_size=20) | st.integers() | st.just(ASKED) | st.just(CHAT), min_size=1))
def test_any_line_is_read_or_skipped(answer: dict[str, Any]) -> None:
    assert len(list(read_jsonl([json.dumps(answer).encode()]))) == 1


@given(st.binary(min_size=1, max_size=40).filter(lambda data: data.strip() != b""))
def test_any_bytes_are_read_or_skipped(data: bytes) -> None:
    assert len(list(read_jsonl([data]))) == 1
