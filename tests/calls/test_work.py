"""Work that goes on after its answer and is looked after: one call, however often somebody looks."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Call
from tests.calls.sample_requests import PROFILES
from tests.calls.test_derive import answered_exchange

RUNWAY = "https://api.dev.runwayml.com/v1"
ARK = "https://ark.cn-beijing.volces.com/api/v3/contents/generations/tasks"
KLING = "https://api.klingai.com/v1/videos/text2video"
LUMA = "https://api.lumalabs.ai/dream-machine/v1/generations"


def call(method: str, url: str, answer: Any) -> Call:
    made = answered_exchange(url, {"model": "m", "prompt": "a cat"}, json.dumps(answer).encode())
    return derive_call(replace(made, request=replace(made.request, method=method)), PROFILES)


@pytest.mark.parametrize(
    ("asked", "begun", "looked", "going_on", "done"),
    [
        ("https://api.x.ai/v1/videos/generations", {"request_id": "w1"}, "https://api.x.ai/v1/videos/w1", {"status": "pending"}, {"status": "done", "model": "m", "video": {"url": "u"}}),
        ("https://openrouter.ai/api/v1/videos", {"id": "w1", "polling_url": "u", "status": "pending"}, "https://openrouter.ai/api/v1/videos/w1", {"id": "w1", "status": "in_progress"}, {"id": "w1", "status": "completed"}),
        ("https://api.together.xyz/v2/videos", {"id": "w1", "object": "video", "status": "in_progress"}, "https://api.together.xyz/v2/videos/w1", {"id": "w1", "object": "video", "status": "queued"}, {"id": "w1", "object": "video", "status": "completed"}),
        ("https://api.z.ai/api/paas/v4/videos/generations", {"id": "w1", "request_id": "r", "task_status": "PROCESSING"}, "https://api.z.ai/api/paas/v4/async-result/w1", {"id": "w1", "task_status": "PROCESSING"}, {"task_status": "SUCCESS", "video_result": []}),
        (f"{RUNWAY}/image_to_video", {"id": "w1"}, f"{RUNWAY}/tasks/w1", {"id": "w1", "status": "THROTTLED"}, {"id": "w1", "status": "SUCCEEDED", "output": ["u"]}),
        (ARK, {"id": "w1"}, f"{ARK}/w1", {"id": "w1", "status": "running"}, {"id": "w1", "status": "succeeded", "content": {"video_url": "u"}}),
        (LUMA, {"id": "w1", "state": "queued"}, f"{LUMA}/w1", {"id": "w1", "state": "dreaming"}, {"id": "w1", "state": "completed"}),
        (KLING, {"code": 0, "data": {"task_id": "w1", "task_status": "submitted"}}, f"{KLING}/w1", {"code": 0, "data": {"task_id": "w1", "task_status": "processing"}}, {"code": 0, "data": {"task_id": "w1", "task_status": "succeed"}}),
    ],
    ids=lambda value: value.split("/")[2] if isinstance(value, str) else "",
)  # fmt: skip
def test_who_makes_a_video_is_looked_after_until_it_is_done(
    asked: str, begun: Any, looked: str, going_on: Any, done: Any
) -> None:
    first, look, last = call("POST", asked, begun), call("GET", looked, going_on), call("GET", looked, done)
    assert (first.operation, first.pending, first.complete) == ("video_generation", "w1", False)
    assert (look.polls, look.pending, look.complete) == ("w1", "w1", False)
    assert (last.kind, last.polls, last.pending, last.complete) == ("model", "w1", None, True)


@pytest.mark.parametrize("answer", [{"id": "b", "object": "batch", "status": "in_progress"}, {"text": "hi"}, {}])
def test_what_only_has_a_status_is_done(answer: Any) -> None:
    assert call("POST", "https://api.openai.com/v1/audio/transcriptions", answer).pending is None


def test_pairs_of_texts_are_scored_at_a_server_nearby() -> None:
    scored = {
        "object": "list",
        "model": "m",
        "data": [{"index": 0, "object": "score", "score": 1}],
        "usage": {"prompt_tokens": 7},
    }
    made = answered_exchange(
        "http://localhost:8000/score", {"model": "m", "text_1": "a", "text_2": ["b"]}, json.dumps(scored).encode()
    )
    found = derive_call(made, PROFILES)
    assert (found.dialect, found.model_returned, found.usage.input_tokens, found.warnings) == ("rerank", "m", 7, ())
    assert found.tool_results == ({"id": 0, "score": 1, "content": None},)
    assert call("POST", "https://credit.example.com/score", {}).dialect == "generic"


def test_a_prompt_that_portkey_keeps_is_a_chat() -> None:
    url = "https://api.portkey.ai/v1/prompts/pp-x/completions"
    said = {"model": "m", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    found = [
        derive_call(answered_exchange(url, {"variables": {"a": name}}, json.dumps(said).encode()), PROFILES)
        for name in "xy"
    ]
    assert found[0].key != found[1].key
    assert (found[0].dialect, found[0].text, found[0].warnings) == ("openai_chat", "hi", ())
