"""Whatever reads the requests and answers of calls reads those, too, whose members are of other kinds than an API has."""

import logging
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calls.checking.checked_run import CheckedRun
from calls.codec.json import dumps
from calls.derive import derive_call
from calls.model import Json
from store.attribution.turns import produced_turn_id, read_turns, referenced_turn_id
from store.otlp.spans.conversation import answer_reasoning, request_conversation
from store.query.prompt_parts import PromptParts
from store.search import call_texts as texts_module
from store.search.call_texts import call_texts, collect_texts
from tests.calls.checking.runs import step
from tests.replay.strategies import PROFILES
from tests.store.samples import call, exchange

_NAMES = (
    "type",
    "role",
    "content",
    "text",
    "parts",
    "name",
    "status",
    "id",
    "object",
    "messages",
    "input",
    "output",
    "system",
    "contents",
    "tool_calls",
    "function",
    "arguments",
    "result",
    "thinking",
    "summary",
    "data",
    "properties",
    "schema",
)
_WORDS = ("user", "assistant", "tool", "text", "tool_use", "tool_result", "function_call", "queued", "video", "a b")
_leaves = st.sampled_from((*_WORDS, None, True, 1, ""))
_values: st.SearchStrategy[Json] = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)
_documents = st.dictionaries(st.sampled_from(_NAMES), _values, min_size=1, max_size=4)
SCHEMA: Any = {"properties": {"type": {"type": "string"}, "role": {"type": "string"}}}


@given(_documents, _documents)
@example({"text": {"format": {"schema": SCHEMA}}}, {})
@example({"messages": [{"role": "user", "content": [{"type": {}, "text": "a b"}]}]}, {})
@example({"messages": [{"role": {}, "content": [{"type": {}, "text": "a b"}]}]}, {})
def test_no_kind_of_member_stops_a_reader(request: dict[str, Json], answer: dict[str, Json]) -> None:
    for kind in ("model", "tool"):
        one = call(exchange(0), dialect="openai_chat", kind=kind, request=request, answer=answer, tool_results=())
        assert call_texts(one) == collect_texts(one)
        list(read_turns(request))
        produced_turn_id(one)
        referenced_turn_id(request)
        request_conversation(request)
        answer_reasoning(answer)
        PromptParts().divide(dumps(request))
    texts = CheckedRun("run", (step(1, call={"request": request}),)).user_texts
    assert all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize("status", [{}, [], {"state": "queued"}])
def test_a_picture_or_video_whose_status_is_no_text_is_no_answer_that_goes_on(status: Json) -> None:
    answer = dumps({"id": "v_1", "object": "video", "status": status})
    made = exchange(0, url="https://api.openai.com/v1/videos", request=b'{"model": "sora-2"}', response=answer)
    assert derive_call(made, PROFILES).pending is None


def test_a_call_whose_texts_cannot_be_collected_stops_neither_ingest_nor_the_index(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(texts_module, "_all_texts", fail)
    with caplog.at_level(logging.ERROR):
        assert call_texts(call(exchange(0))) == []
    assert "could not be collected" in caplog.text
