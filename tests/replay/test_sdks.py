"""The official SDKs against a replay: answers as recorded, and a miss that is one request and a readable exception."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from calls.codec.json import dumps
from calls.model import Json
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.strategies import PROFILES, chat, exchange, model_answer, ok, post, run_of
from tests.replay.worker import Worker, open_worker

if TYPE_CHECKING:
    import anthropic
    import openai

MESSAGES = "https://api.anthropic.com/v1/messages"
VERSION = (("content-type", "application/json"), ("anthropic-version", "2023-06-01"))
PINNED = {"anthropic-version": "2023-06-01"}


def messages(prompt: str) -> bytes:
    said: Json = [{"role": "user", "content": prompt}]
    return dumps({"max_tokens": 16, "messages": said, "model": "claude-test"})


def anthropic_answer(text: str) -> Json:
    content: Json = [{"type": "text", "text": text}]
    usage: Json = {"input_tokens": 3, "output_tokens": 2}
    ends: dict[str, Json] = {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test", "content": content, **ends}


@pytest.fixture
def openai_worker() -> Iterator[Worker]:
    run = run_of(exchange(chat("Is Paris nice?"), model_answer("Yes.")))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(), lambda _: None)
    with open_worker("https://api.openai.com", session.answer) as worker:
        yield worker


@pytest.fixture
def anthropic_worker() -> Iterator[Worker]:
    run = run_of(exchange(post(MESSAGES, messages("Is Paris nice?"), VERSION), ok(dumps(anthropic_answer("Yes.")))))
    session = Session("replay-1", build_recording(run, PROFILES), ReplayOptions(), lambda _: None)
    with open_worker("https://api.anthropic.com", session.answer) as worker:
        yield worker


def readable(error: "openai.APIStatusError | anthropic.APIStatusError") -> None:
    """The message of an uncaught exception."""
    assert error.status_code == 424
    shown = str(error)
    assert "was not recorded in run run-1" in shown
    assert '/body/messages/0/content (recorded "Is Paris nice?", now "Is Rome nice?")' in shown
    assert "playhead replay run-1 --on-miss live -- CMD" in shown


def openai_messages(prompt: str) -> "list[openai.types.chat.ChatCompletionMessageParam]":
    return [{"role": "user", "content": prompt}]


def test_openai_gets_the_recorded_answer_and_then_one_readable_miss(openai_worker: Worker) -> None:
    import openai

    with openai.OpenAI(api_key="sk-test", base_url=f"{openai_worker.url}/v1", max_retries=5) as client:
        answer = client.chat.completions.create(model="gpt-test", messages=openai_messages("Is Paris nice?"))
        assert answer.choices[0].message.content == "Yes."
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="gpt-test", messages=openai_messages("Is Rome nice?"))
    readable(caught.value)
    assert (caught.value.type, caught.value.code) == ("replay_miss", "no_match")
    assert len(openai_worker.asked) == 2


def test_openai_streaming_a_miss_is_an_exception_too(openai_worker: Worker) -> None:
    import openai

    client = openai.OpenAI(api_key="sk-test", base_url=f"{openai_worker.url}/v1", max_retries=5)
    with client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="gpt-test", messages=openai_messages("Is Rome nice?"), stream=True)
    readable(caught.value)
    assert len(openai_worker.asked) == 1


async def test_openai_async_a_miss_is_one_request(openai_worker: Worker) -> None:
    import openai

    async with openai.AsyncOpenAI(api_key="sk-test", base_url=f"{openai_worker.url}/v1", max_retries=5) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="gpt-test", messages=openai_messages("Is Rome nice?"))
    readable(caught.value)
    assert len(openai_worker.asked) == 1


def test_openai_asks_for_a_stream_of_an_answer_that_was_recorded_whole(openai_worker: Worker) -> None:
    import openai

    with openai.OpenAI(api_key="sk-test", base_url=f"{openai_worker.url}/v1") as client:
        stream = client.chat.completions.create(
            model="gpt-test", messages=openai_messages("Is Paris nice?"), stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "Yes."


def anthropic_messages(prompt: str) -> "list[anthropic.types.MessageParam]":
    return [{"role": "user", "content": prompt}]


def test_anthropic_gets_the_recorded_answer_and_then_one_readable_miss(anthropic_worker: Worker) -> None:
    import anthropic

    with anthropic.Anthropic(
        api_key="sk-ant-test", base_url=anthropic_worker.url, default_headers=PINNED, max_retries=5
    ) as client:
        answer = client.messages.create(
            model="claude-test", max_tokens=16, messages=anthropic_messages("Is Paris nice?")
        )
        assert answer.content[0].type == "text"
        assert answer.content[0].text == "Yes."
        with pytest.raises(anthropic.APIStatusError) as caught:
            client.messages.create(model="claude-test", max_tokens=16, messages=anthropic_messages("Is Rome nice?"))
    readable(caught.value)
    assert len(anthropic_worker.asked) == 2


async def test_anthropic_async_a_miss_is_one_request(anthropic_worker: Worker) -> None:
    import anthropic

    async with anthropic.AsyncAnthropic(
        api_key="sk-ant-test", base_url=anthropic_worker.url, default_headers=PINNED, max_retries=5
    ) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(
                model="claude-test", max_tokens=16, messages=anthropic_messages("Is Rome nice?")
            )
    readable(caught.value)
    assert len(anthropic_worker.asked) == 1


def test_anthropic_asks_for_a_stream_of_an_answer_that_was_recorded_whole(anthropic_worker: Worker) -> None:
    import anthropic

    client = anthropic.Anthropic(api_key="sk-ant-test", base_url=anthropic_worker.url, default_headers=PINNED)
    asking = client.messages.stream(model="claude-test", max_tokens=16, messages=anthropic_messages("Is Paris nice?"))
    with client, asking as stream:
        assert "".join(stream.text_stream) == "Yes."
        assert stream.get_final_message().usage.output_tokens == 2
