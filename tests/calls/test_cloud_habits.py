"""Where a provider has a habit of its own, in the bytes that it really sent: what we do, and that the corpus still shows it."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from calls.framing.eventstream import Decoder
from calls.model import Call
from tests.calls.judging import derive_corpus, streams, unpacked_body
from tests.support.corpus import RecordedExchange


def events(recorded: RecordedExchange) -> list[tuple[str, Any]]:
    """The events of an event stream, with what they carry."""
    frames = [frame.message for frame in Decoder().feed_frames(unpacked_body(recorded))]
    return [(frame.event, json.loads(frame.data)) for frame in frames]


def decode_chunks(recorded: RecordedExchange) -> list[Any]:
    """What the chunks of an invocation carry."""
    return [json.loads(base64.b64decode(said["bytes"])) for name, said in events(recorded) if name == "chunk"]


def parts(call: Call) -> list[Any]:
    answer: Any = call.answer
    return [part for one in answer.get("candidates", ()) for part in one["content"].get("parts", ())]


def is_array(recorded: RecordedExchange, call: Call) -> bool:
    """Gemini without `alt=sse`: one array, labelled as JSON."""
    media = dict(recorded.response_headers).get("Content-Type", "")
    return (
        call.dialect == "gemini"
        and unpacked_body(recorded)[:1] == b"["
        and "application/json" in media
        and call.streamed
    )


def signs_nothing(recorded: RecordedExchange, call: Call) -> bool:
    """Gemini signs an empty text at the end of a stream: the part stays, and its signature."""
    return call.dialect == "gemini" and any(
        part.get("text") == "" and "thoughtSignature" in part for part in parts(call)
    )


def thinks_aloud(recorded: RecordedExchange, call: Call) -> bool:
    """Gemini's thoughts are parts beside the answer: they stay, and are not its text."""
    thoughts = [part["text"] for part in parts(call) if part.get("thought")] if call.dialect == "gemini" else []
    return bool(thoughts) and thoughts[0] not in (call.text or "")


def numbers_its_reasons(recorded: RecordedExchange, call: Call) -> bool:
    """Vertex's older SDK asks for enums as numbers: the answer keeps them, the call has the name."""
    answer: Any = call.answer
    if call.dialect != "gemini" or not isinstance(answer, dict) or not answer.get("candidates"):
        return False
    return isinstance(answer["candidates"][0].get("finishReason"), int) and call.finish_reason in ("STOP", "MAX_TOKENS")


def starts_no_text(recorded: RecordedExchange, call: Call) -> bool:
    """Converse starts no block of text: its first delta does."""
    if call.dialect != "bedrock_converse" or not call.streamed:
        return False
    names = [name for name, _ in events(recorded)]
    return names.count("contentBlockStop") > names.count("contentBlockStart") and call.text is not None


def pads(recorded: RecordedExchange, call: Call) -> bool:
    """Bedrock pads every payload: no padding is in the answer."""
    padded = call.dialect.startswith("bedrock") and call.streamed and all("p" in said for _, said in events(recorded))
    answer: Any = call.answer
    return padded and "p" not in answer


def counts_last(recorded: RecordedExchange, call: Call) -> bool:
    """Bedrock sends its counts with an invocation's last chunk: they are in the answer, and in the call."""
    if call.dialect != "bedrock_invoke" or not call.streamed:
        return False
    answer: Any = call.answer
    return (
        "amazon-bedrock-invocationMetrics" in decode_chunks(recorded)[-1]
        and call.usage.output_tokens is not None
        and ("amazon-bedrock-invocationMetrics" in answer)
    )


def is_stopped_by_a_guardrail(recorded: RecordedExchange, call: Call) -> bool:
    """A guardrail that blocks the prompt ends the stream without counts: it is complete all the same."""
    if call.dialect != "bedrock_invoke" or not call.streamed:
        return False
    return "amazon-bedrock-invocationMetrics" not in decode_chunks(recorded)[-1] and call.complete


def counts_in_fractions(recorded: RecordedExchange, call: Call) -> bool:
    """Titan under a guardrail counts 28.0 tokens: they are 28."""
    body = unpacked_body(recorded)
    return call.dialect == "bedrock_invoke" and b'"inputTextTokenCount":28.0' in body and call.usage.input_tokens == 28


def counts_in_headers(recorded: RecordedExchange, call: Call) -> bool:
    """A body that has no counts has them in the headers on Bedrock."""
    names = {name.lower() for name, _ in recorded.response_headers}
    counted = call.dialect == "bedrock_invoke" and "x-amzn-bedrock-output-token-count" in names
    return counted and b"oken" not in unpacked_body(recorded) and call.usage.output_tokens is not None


def answers_a_stream_with_an_error(recorded: RecordedExchange, call: Call) -> bool:
    """A stream that is refused is answered by plain JSON."""
    asked = recorded.url.endswith("-stream") and recorded.status >= 400
    return asked and not call.streamed and isinstance(call.answer, dict) and "message" in call.answer


def says_it_all_again(recorded: RecordedExchange, call: Call) -> bool:
    """Cohere's first API brings the whole answer at the end of the stream: that is the answer."""
    if call.dialect != "cohere_v1" or not call.streamed:
        return False
    said: object = json.loads(unpacked_body(recorded).splitlines()[-1])["response"]["text"]
    return said == call.text


def is_done_and_says_done(recorded: RecordedExchange, call: Call) -> bool:
    """Cohere's second API sends `[DONE]` after its own end."""
    return (
        call.dialect == "cohere_v2"
        and call.streamed
        and unpacked_body(recorded).rstrip().endswith(b"[DONE]")
        and call.complete
    )


def times_out_when_done(recorded: RecordedExchange, call: Call) -> bool:
    """Replicate's stream tells of a timeout in a comment, after its end: it is complete all the same."""
    return call.dialect == "replicate" and b":408:" in unpacked_body(recorded)[-40:] and call.complete


def sends_plain_text(recorded: RecordedExchange, call: Call) -> bool:
    """Replicate's pieces are text in several lines, and no JSON."""
    return (
        call.dialect == "replicate"
        and b"data: :\ndata: \ndata: Why" in unpacked_body(recorded)
        and ":\n\nWhy" in (call.text or "")
    )


def forgets_the_prompt(recorded: RecordedExchange, call: Call) -> bool:
    """Watsonx counts the prompt in its first event, and then zero."""
    return call.dialect == "watsonx" and call.streamed and call.usage.input_tokens == 8


HABITS: list[tuple[Callable[[RecordedExchange, Call], bool], int]] = [
    (is_array, 15),
    (signs_nothing, 5),
    (thinks_aloud, 7),
    (numbers_its_reasons, 11),
    (starts_no_text, 26),
    (pads, 50),
    (counts_last, 38),
    (is_stopped_by_a_guardrail, 1),
    (counts_in_fractions, 1),
    (counts_in_headers, 5),
    (answers_a_stream_with_an_error, 2),
    (says_it_all_again, 2),
    (is_done_and_says_done, 10),
    (times_out_when_done, 3),
    (sends_plain_text, 3),
    (forgets_the_prompt, 2),
]


@pytest.mark.parametrize(("habit", "times"), HABITS, ids=lambda value: getattr(value, "__name__", None))
def test_a_habit_is_known_where_the_corpus_shows_it(
    habit: Callable[[RecordedExchange, Call], bool], times: int
) -> None:
    found = [name for name, recorded, call in derive_corpus() if habit(recorded, call)]
    assert len(found) >= times, len(found)


def test_every_recorded_stream_of_the_clouds_comes_to_its_end() -> None:
    found = streams("gemini", "bedrock_converse", "bedrock_invoke", "cohere_v1", "cohere_v2", "ollama")
    assert [name for name, _, call in found if not call.complete] == []
    assert len(found) > 100
