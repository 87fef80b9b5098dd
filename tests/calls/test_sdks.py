"""The official SDKs as judges: what they accumulate from the bytes of a stream is what we make of them.

Where the two differ it is a habit of a provider that the SDK's plain rule (join every string, keep the last of everything
else) does not know. Each such habit is listed in `HABITS`, with the places at which it may show; one that the corpus does not
show any more fails the full run, so that the list cannot rot.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from calls.derive import derive
from calls.json import dumps
from calls.model import Call
from store.profiles import shipped
from tests.calls.recorded import exchange
from tests.support.corpus import Recorded, cassettes

HABITS = {
    # Of the SDK: a list in pieces needs an index, and keeps it.
    "the index of a piece stays in the whole": r"openai_chat .*/tool_calls/\d+/index",
    # Azure's first chunk says nothing, with an empty id and model and zero for `created`; the SDK keeps the first.
    "the first chunk's empty id": r"openai_chat /(id|model|created|object)",
    # The SDK takes a choice's own fields from its first chunk only.
    "a choice's later fields": r"openai_chat /choices/\d+/(content_filter_results|native_finish_reason).*",
    # …a completion's from its first chunk, but usage and fingerprint from its last, which may be null.
    "a completion's other fields": r"openai_chat /(system_fingerprint|usage|x_groq/usage|service_tier|latency_checkpoint).*",
    # OpenRouter, Together and others say the role in every chunk; the SDK joins it to `assistantassistant`.
    "the role again and again": r"openai_chat /choices/\d+/message/role",
    # Kimi (simonw/llm, test_tools_streaming_variant_a) says id and name in every chunk.
    "id and name again and again": r"openai_chat /choices/\d+/message/tool_calls/\d+/(id|function/name)",
    # The LiteLLM proxy sends the request's options back with every chunk.
    "an echo of the request": r"openai_chat /stream_options.*",
    # Newer than the SDK's message.
    "context_management": r"anthropic /context_management.*",
}

BREAKS = "a choice without a delta breaks the SDK"
"""Azure's asynchronous content filter sends its verdict in a choice that has no delta."""

PROFILES = shipped()


def streams() -> Iterator[tuple[str, Recorded, Call]]:
    """Every streamed chat or message of the corpus, with what we make of it."""
    for cassette in cassettes():
        for recorded in cassette.exchanges:
            call = derive(exchange(recorded), PROFILES)
            if call.streamed and call.dialect in ("openai_chat", "anthropic"):
                yield cassette.name, recorded, call


def client(data: bytes) -> httpx2.Client:
    """An HTTP client whose every answer is this stream."""
    head = {"content-type": "text/event-stream"}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, headers=head, content=data)))


def by_openai(data: bytes) -> Any:
    state = ChatCompletionStreamState()
    with openai.OpenAI(api_key="none", max_retries=0, http_client=client(data)) as sdk:
        for chunk in sdk.chat.completions.create(model="any", messages=[], stream=True):
            state.handle_chunk(chunk)
    return state.current_completion_snapshot.to_dict(mode="json", warnings=False)


def by_anthropic(data: bytes) -> Any:
    with (
        anthropic.Anthropic(api_key="none", max_retries=0, http_client=client(data)) as sdk,
        sdk.messages.stream(model="any", max_tokens=1, messages=[]) as stream,
    ):
        return stream.get_final_message().to_dict(mode="json", warnings=False)


SDKS = {"openai_chat": by_openai, "anthropic": by_anthropic}

_ADDED = frozenset(("parsed", "parsed_arguments", "parsed_output", "obfuscation"))


def said(value: Any) -> Any:
    """The value without what says nothing (null, empty lists), and without what an SDK adds or noise pads."""
    match value:
        case dict():
            return {name: said(item) for name, item in value.items() if item not in (None, []) and name not in _ADDED}
        case list():
            return [said(item) for item in value]
        case _:
            return value


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    match ours, theirs:
        case dict(), dict():
            for name in {**ours, **theirs}:
                yield from differences(ours.get(name), theirs.get(name), f"{at}/{name}")
        case list(), list() if len(ours) == len(theirs):
            for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from differences(one, other, f"{at}/{place}")
        case _ if ours != theirs:
            yield at


def judged(recorded: Recorded, call: Call) -> tuple[set[str], list[str]]:
    """The habits that account for a difference to the SDK's own message, and the places that none accounts for."""
    data = recorded.response_body
    body = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    try:
        theirs = SDKS[call.dialect](body)
    except AttributeError:
        return {BREAKS}, []
    places = list(differences(said(json.loads(dumps(call.answer))), said(theirs)))
    habits = {name for name, shape in HABITS.items() for at in places if re.fullmatch(shape, f"{call.dialect} {at}")}
    known = "|".join(HABITS.values())
    return habits, [at for at in places if not re.fullmatch(known, f"{call.dialect} {at}")]


def test_a_sample_of_recorded_streams_is_what_the_sdks_say() -> None:
    for name, recorded, call in list(streams())[::6]:
        assert judged(recorded, call)[1] == [], name


@pytest.mark.slow
def test_every_recorded_stream_is_what_the_sdks_say() -> None:
    seen: Counter[str] = Counter()
    unexplained: list[tuple[str, list[str]]] = []
    for name, recorded, call in streams():
        habits, places = judged(recorded, call)
        seen.update({call.dialect, *habits})
        if places:
            unexplained.append((name, places))
    assert unexplained == []
    assert set(seen) == {*HABITS, BREAKS, *SDKS}
    assert seen[BREAKS] == 1
    assert seen["openai_chat"] > 150
    assert seen["anthropic"] > 50
