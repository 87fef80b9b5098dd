"""OpenAI's own SDK as the judge of everything beside chats: what it accumulates from the bytes is what we make of them.

Where the two differ it is a habit, of the provider's or of the SDK's, that is listed in `HABITS` with the places at which it may show.
"""

import importlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, get_args

import pytest

from calls.codec.json import dumps
from calls.dialects.openai import responses as openai_responses
from calls.model import Call
from store.active_profiles import load_profiles
from tests.calls.judging import (
    client,
    derive_corpus,
    differences,
    explain_places,
    in_pieces,
    streams,
    unpacked_body,
    without_defaults,
)
from tests.support.corpus import RecordedExchange

if TYPE_CHECKING:
    from openai import OpenAI

HABITS = {
    # The SDK keeps a step as it began, with its pieces; what the server says of it at its end it passes on, and forgets.
    "a step's end": r"openai_assistants /steps/\d+/(status|completed_at|usage)",
    # Of the SDK: a list in pieces keeps the index of its pieces.
    "the index of a piece stays in the whole": r"openai_assistants .*/index",
    # A test server's last chunk has an empty chat delta in place of a text.
    "a chat's delta": r"openai_completions /choices/\d+/delta",
    # OpenAI says `length` in the last piece and again after it; the SDK's plain rule joins them to `lengthlength`.
    "the end said twice": r"openai_completions /choices/\d+/finish_reason",
}


def sdk(data: bytes) -> "OpenAI":
    from openai import OpenAI

    return OpenAI(api_key="none", max_retries=0, http_client=client(data))


def by_responses(data: bytes) -> Any:
    """The SDK wants every end to be a good one; of another it takes what the event says."""
    with sdk(data) as api, api.responses.stream(model="any", input="") as stream:
        events = list(stream)
    return plain(events[-1].response)


def by_assistants(data: bytes) -> Any:
    from openai import AssistantEventHandler

    handler = AssistantEventHandler()
    with (
        pytest.deprecated_call(),
        sdk(data) as api,
        api.beta.threads.runs.stream(thread_id="any", assistant_id="any", event_handler=handler) as stream,
    ):
        stream.until_done()
    steps, messages = stream.get_final_run_steps(), stream.get_final_messages()
    return plain(stream.get_final_run()) | {"messages": [*map(plain, messages)], "steps": [*map(plain, steps)]}


def by_completions(data: bytes) -> Any:
    """The SDK has no accumulation of its own for these: its plain rule for pieces is taken, choice by choice."""
    from openai.lib.streaming._deltas import accumulate_delta

    whole: dict[str, Any] = {}
    choices: dict[int, dict[object, object]] = {}
    with sdk(data) as api:
        for chunk in api.completions.create(model="any", prompt="", stream=True):
            said_now = plain(chunk)
            for choice in said_now.pop("choices", []):
                accumulate_delta(choices.setdefault(choice.get("index", 0), {}), choice)
            whole |= {name: value for name, value in said_now.items() if value is not None}
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def plain(model: Any) -> Any:
    return model.to_dict(mode="json", warnings=False)


SDKS = {"openai_responses": by_responses, "openai_assistants": by_assistants, "openai_completions": by_completions}

_ADDED = frozenset(("parsed", "parsed_arguments", "obfuscation"))


def judge_answer(name: str, recorded: RecordedExchange, call: Call) -> tuple[set[str], list[str]]:
    theirs = SDKS[call.dialect](unpacked_body(recorded))
    places = list(
        differences(without_defaults(in_pieces(name, recorded, call), _ADDED), without_defaults(theirs, _ADDED))
    )
    return explain_places(call.dialect, places, HABITS)


def test_every_recorded_stream_is_what_the_sdk_says() -> None:
    seen: Counter[str] = Counter()
    unexplained: list[tuple[str, list[str]]] = []
    for name, recorded, call in streams(*SDKS):
        if call.provider == "writer":
            continue
        habits, places = judge_answer(name, recorded, call)
        seen.update({call.dialect, *habits})
        if places:
            unexplained.append((name, places))
    assert unexplained == []
    assert set(seen) == {*HABITS, *SDKS}
    assert {dialect: seen[dialect] for dialect in SDKS} == {
        "openai_responses": 48,
        "openai_assistants": 6,
        "openai_completions": 33,
    }


def events(data: bytes) -> list[dict[str, Any]]:
    lines = data.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def build_answer(kept: list[dict[str, Any]]) -> Any:
    """What we make of a stream of only these events."""
    stream = openai_responses.ResponsesStream()
    for event in kept:
        stream.add_message(event["type"], json.dumps(event))
    return json.loads(dumps(stream.answer))


def without_blobs(items: list[dict[str, Any]]) -> Any:
    """Items without what is encrypted anew in every telling (reference: wire B.2)."""
    return [without_defaults(item, frozenset(("encrypted_content", "obfuscation"))) for item in items]


def test_without_its_end_a_response_is_built_of_its_items_and_they_are_the_end_s() -> None:
    for name, recorded, _ in streams("openai_responses"):
        *before, end = events(unpacked_body(recorded))
        assert without_blobs(build_answer(before)["output"]) == without_blobs(end["response"]["output"]), name


def test_without_any_whole_item_a_response_is_built_of_pieces_and_they_make_the_same() -> None:
    for name, recorded, _ in streams("openai_responses"):
        *before, end = events(unpacked_body(recorded))
        pieces = [event for event in before if not event["type"].endswith(".done")]
        places = differences(without_blobs(build_answer(pieces)["output"]), without_blobs(end["response"]["output"]))
        # Only the last telling of an item says that it is done.
        assert [at for at in places if not at.endswith("/status")] == [], name


def test_vectors_are_the_sdk_s() -> None:
    from openai import OpenAI

    counted = 0
    for name, recorded, call in derive_corpus():
        ours: Any = call.answer
        if call.dialect != "openai_embeddings" or not isinstance(ours, dict) or "data" not in ours:
            continue
        api = OpenAI(api_key="none", http_client=client(unpacked_body(recorded), "application/json"))
        theirs = api.embeddings.create(model="any", input="").data
        assert [[*map(float, one["embedding"])] for one in ours["data"]] == [one.embedding for one in theirs], name
        counted += 1
    assert counted > 70


DOCUMENTED = [
    ("openai_chat/1", "chat.completion_create_params", "CompletionCreateParams"),
    ("openai_responses/1", "beta.response_create_params", "ResponseCreateParams"),
    ("openai_responses_socket/1", "beta.response_create_params", "ResponseCreateParams"),
    ("openai_responses/1", "responses.response_compact_params", "ResponseCompactParams"),
    ("openai_responses/1", "responses.input_token_count_params", "InputTokenCountParams"),
    ("openai_embeddings/1", "embedding_create_params", "EmbeddingCreateParams"),
    ("openai_completions/1", "completion_create_params", "CompletionCreateParams"),
    ("openai_assistants/1", "beta.assistant_create_params", "AssistantCreateParams"),
    ("openai_assistants/1", "beta.thread_create_and_run_params", "ThreadCreateAndRunParams"),
    ("openai_assistants/1", "beta.threads.run_create_params", "RunCreateParams"),
    ("openai_assistants/1", "beta.threads.message_create_params", "MessageCreateParams"),
]
ELSEWHERE = {"betas", "include"}
"""Fields of the SDK's methods that go into a header, and, of a run of an assistant, into the query."""


@pytest.mark.parametrize(("name", "module", "params"), DOCUMENTED)
def test_a_profile_knows_every_field_that_the_sdk_can_send(name: str, module: str, params: str) -> None:
    [profile] = [profile for profile in load_profiles().profiles if profile.name == name]
    paths = (*profile.key, *profile.transient, *profile.identity, *profile.secret)
    known = {found[1] for path in paths if (found := re.match(r"\$(?:\[\*\])?\.(\w+)", path))}
    form_or_union = getattr(importlib.import_module(f"openai.types.{module}"), params)
    forms = get_args(form_or_union) or (form_or_union,)
    sent = {field for form in forms for base in form.__mro__ for field in getattr(base, "__annotations__", {})}
    assert sent - known <= ELSEWHERE
