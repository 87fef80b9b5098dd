"""The official SDKs as judges: what they accumulate from the bytes of a stream is what we make of them.

Where the two differ it is a habit of a provider that the SDK's plain rule (join every string, keep the last of everything
else) does not know. Each such habit is listed in `HABITS`, with the places at which it may show; one that the corpus does not
show any more fails the full run, so that the list cannot rot.
"""

from collections import Counter
from typing import Any

import pytest

from calls.model import Call
from tests.calls.judging import client, differences, explain_places, in_pieces, streams, unpacked_body, without_defaults
from tests.support.corpus import RecordedExchange

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

BREAKS = {
    AttributeError: "a choice without a delta breaks the SDK",
    AssertionError: "a tool call without a type breaks the SDK",
}
"""Azure's asynchronous content filter sends its verdict in a choice that has no delta; Writer says the type of a tool call in its first
piece only, and null in the others."""


def by_openai(data: bytes) -> Any:
    import openai
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state = ChatCompletionStreamState()
    with openai.OpenAI(api_key="none", max_retries=0, http_client=client(data)) as sdk:
        for chunk in sdk.chat.completions.create(model="any", messages=[], stream=True):
            state.handle_chunk(chunk)
    return state.current_completion_snapshot.to_dict(mode="json", warnings=False)


def by_anthropic(data: bytes) -> Any:
    import anthropic

    with (
        anthropic.Anthropic(api_key="none", max_retries=0, http_client=client(data)) as sdk,
        sdk.messages.stream(model="any", max_tokens=1, messages=[]) as stream,
    ):
        return stream.get_final_message().to_dict(mode="json", warnings=False)


SDKS = {"openai_chat": by_openai, "anthropic": by_anthropic}

_ADDED = frozenset(("parsed", "parsed_arguments", "parsed_output", "obfuscation"))


def judge_answer(name: str, recorded: RecordedExchange, call: Call) -> tuple[set[str], list[str]]:
    """The habits that account for a difference to the SDK's own message, and the places that none accounts for."""
    try:
        theirs = SDKS[call.dialect](unpacked_body(recorded))
    except (AttributeError, AssertionError) as error:
        return {BREAKS[type(error)]}, []
    places = list(
        differences(without_defaults(in_pieces(name, recorded, call), _ADDED), without_defaults(theirs, _ADDED))
    )
    return explain_places(call.dialect, places, HABITS)


def by_deltas(data: bytes) -> Any:
    """The SDK's plain rule alone, without its look at what tool calls are."""
    import openai
    from openai.lib.streaming._deltas import accumulate_delta

    message: dict[object, object] = {}
    with openai.OpenAI(api_key="none", max_retries=0, http_client=client(data)) as sdk:
        for chunk in sdk.chat.completions.create(model="any", messages=[], stream=True):
            for choice in chunk.choices:
                accumulate_delta(message, dict(choice.delta.to_dict(mode="json", warnings=False).items()))
    return message


def test_where_writer_s_streams_break_the_sdk_its_plain_rule_still_judges() -> None:
    judged_so = 0
    for name, recorded, call in streams("openai_chat"):
        ours = in_pieces(name, recorded, call)["choices"][0]["message"]
        if call.provider == "writer" and "tool_calls" in ours:
            judged_so += 1
            theirs = without_defaults(by_deltas(unpacked_body(recorded)), frozenset(("index",)))
            # It joins the role, which Writer says with every piece, and takes the last type, which is null.
            assert [
                at for at in differences(without_defaults(ours), theirs) if not at.endswith(("/role", "/type"))
            ] == [], name
    assert judged_so == 12


def test_a_sample_of_recorded_streams_is_what_the_sdks_say() -> None:
    for name, recorded, call in streams(*SDKS)[::6]:
        assert judge_answer(name, recorded, call)[1] == [], name


@pytest.mark.slow
def test_every_recorded_stream_is_what_the_sdks_say() -> None:
    seen: Counter[str] = Counter()
    unexplained: list[tuple[str, list[str]]] = []
    for name, recorded, call in streams(*SDKS):
        habits, places = judge_answer(name, recorded, call)
        seen.update({call.dialect, *habits})
        if places:
            unexplained.append((name, places))
    assert unexplained == []
    assert set(seen) == {*HABITS, *BREAKS.values(), *SDKS}
    assert seen[BREAKS[AttributeError]] == 1
    assert seen["openai_chat"] > 200
    assert seen["anthropic"] > 50
