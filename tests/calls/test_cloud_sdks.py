"""The official SDKs of the clouds as judges: what they make of the bytes of a stream is what we make of them.

Only Cohere's first API and Anthropic's SDK put a whole answer together. The others hand out pieces: these are joined here, as plainly
as each API's own manual says, and the SDK then has to read our whole answer as it reads one that came whole. There is no list of
excuses: on the recorded streams the two are equal.

Each SDK is imported where it is used: together they take seconds, and every pytest worker imports every test module.
"""

import io
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from calls.model import Call
from tests.calls.judging import differences, in_pieces, streams, unpacked_body, without_defaults
from tests.calls.test_sdks import by_anthropic
from tests.support.corpus import RecordedExchange

if TYPE_CHECKING:
    from google import genai


def http(data: bytes, media: str) -> httpx.Client:
    """An HTTP client whose every answer is this."""
    head = {"content-type": media}
    return httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, headers=head, content=data)))


def google(data: bytes, media: str) -> "genai.Client":
    from google import genai
    from google.genai import types

    options = types.HttpOptions(httpx_client=http(data, media))
    return genai.Client(api_key="none", http_options=options)


def plain(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def as_events(data: bytes) -> bytes:
    """A stream that came as one array, in the only framing that the SDK reads."""
    if not data.startswith(b"["):
        return data
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in json.loads(data))


def by_google(data: bytes) -> Any:
    """All that the chunks say: the last of everything, but parts one after another."""
    whole: dict[str, Any] = {}
    parts: list[Any] = []
    for chunk in google(as_events(data), "text/event-stream").models.generate_content_stream(
        model="any", contents="any"
    ):
        now = plain(chunk)
        now.pop("sdkHttpResponse", None)
        [candidate] = now.pop("candidates")
        parts += candidate["content"].get("parts") or []
        whole = {**whole, **now, "candidate": {**whole.get("candidate", {}), **candidate}}
    return flat(whole, parts)


def by_google_whole(answer: Any) -> Any:
    """Our whole answer as the SDK reads one."""
    found = plain(
        google(json.dumps(answer).encode(), "application/json").models.generate_content(model="any", contents="any")
    )
    found.pop("sdkHttpResponse", None)
    [candidate] = found.pop("candidates")
    return flat({**found, "candidate": candidate}, candidate["content"].get("parts") or [])


def flat(whole: dict[str, Any], parts: list[Any]) -> Any:
    """An answer with the texts of its parts joined, apart from all else that they say, in its order."""
    whole["candidate"].pop("content")
    texts = [
        "".join(part.get("text") or "" for part in parts if bool(part.get("thought")) is kind) for kind in (False, True)
    ]
    others = [{name: value for name, value in part.items() if name not in ("text", "thought")} for part in parts]
    return {**whole, "texts": texts, "others": [one for one in others if one]}


class Raw(io.BytesIO):
    """The body of an answer as urllib3 hands it to botocore."""

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        while piece := self.read(1000):
            yield piece


@lru_cache(maxsize=1)
def amazon_client() -> tuple[Any, list[Any]]:
    """Amazon's client, whose every answer is the last of the list: it reads its description of the API for a tenth of a second."""
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(signature_version=UNSIGNED, retries={"max_attempts": 0})
    client = botocore.session.Session().create_client("bedrock-runtime", region_name="us-east-1", config=config)
    answers: list[Any] = []
    client.meta.events.register("before-send.bedrock-runtime.*", lambda **_: answers[-1])
    return client, answers


def amazon(data: bytes, media: str) -> Any:
    """Amazon's client, whose next answer is this."""
    from botocore.awsrequest import AWSResponse

    client, answers = amazon_client()
    answers[:] = [AWSResponse("https://any", 200, {"content-type": media}, Raw(data))]
    return client


EVENTS = "application/vnd.amazon.eventstream"


def by_converse(data: bytes) -> Any:
    """The turn that the manual of ConverseStream describes: blocks by index, text and input joined."""
    blocks: dict[int, dict[str, Any]] = {}
    turn: dict[str, Any] = {}
    for event in amazon(data, EVENTS).converse_stream(modelId="any", messages=[])["stream"]:
        [(name, value)] = event.items()
        if name in ("messageStop", "metadata", "messageStart"):
            turn |= value
        elif name == "contentBlockStart":
            blocks[value["contentBlockIndex"]] = {"toolUse": {**value["start"]["toolUse"], "input": ""}}
        elif name == "contentBlockDelta" and "text" in value["delta"]:
            block = blocks.setdefault(value["contentBlockIndex"], {"text": ""})
            block["text"] += value["delta"]["text"]
        elif name == "contentBlockDelta":
            blocks[value["contentBlockIndex"]]["toolUse"]["input"] += value["delta"]["toolUse"]["input"]
    for use in (block["toolUse"] for block in blocks.values() if "toolUse" in block):
        use["input"] = json.loads(use["input"] or "{}")
    message = {"role": turn.pop("role"), "content": [blocks[index] for index in sorted(blocks)]}
    return {"output": {"message": message}, **turn}


def by_converse_whole(answer: Any) -> Any:
    """Our whole answer as the SDK reads one."""
    found = amazon(json.dumps(answer).encode(), "application/json").converse(modelId="any", messages=[])
    return {name: value for name, value in found.items() if name != "ResponseMetadata"}


def by_invoke(data: bytes) -> list[Any]:
    """What the chunks carry, as botocore hands it out."""
    body = amazon(data, EVENTS).invoke_model_with_response_stream(modelId="any", body=b"{}")["body"]
    return [json.loads(event["chunk"]["bytes"]) for event in body]


def texts(chunks: list[Any]) -> str:
    """The text of the plain text models and of Nova: joined."""
    names = ("outputText", "generation", "text", "completion")
    spoken = [chunk.get("contentBlockDelta", {}).get("delta", {}).get("text") for chunk in chunks]
    return "".join(
        text or next((chunk[name] for name in names if name in chunk), "")
        for text, chunk in zip(spoken, chunks, strict=True)
    )


def as_anthropic(chunks: list[Any]) -> bytes:
    """The events that Bedrock carries, as Anthropic itself sends them."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in chunks)


def by_cohere_v1(data: bytes) -> Any:
    """The SDK's last event has the answer."""
    import cohere

    client = http(data, "application/stream+json")
    *_, last = cohere.Client(api_key="none", httpx_client=client).chat_stream(message="any")
    assert isinstance(last, cohere.StreamEndStreamedChatResponse)
    return json.loads(last.response.json(exclude_none=True))


def by_cohere_v2(data: bytes) -> Any:
    """The message that the manual of chat describes."""
    import cohere

    message: dict[str, Any] = {"role": "assistant"}
    found: dict[str, Any] = {"message": message}
    for event in cohere.ClientV2(api_key="none", httpx_client=http(data, "text/event-stream")).chat_stream(
        model="any", messages=[]
    ):
        now = json.loads(event.json(exclude_none=True))
        delta = now.get("delta") or {}
        part = delta.get("message") or {}
        match event.type:
            case "message-start":
                found["id"] = event.id
            case "content-start":
                message.setdefault("content", []).append(part["content"])
            case "content-delta":
                message["content"][now["index"]]["text"] += part["content"]["text"]
            case "tool-plan-delta":
                message["tool_plan"] = message.get("tool_plan", "") + part["tool_plan"]
            case "tool-call-start":
                message.setdefault("tool_calls", []).append(part["tool_calls"])
            case "tool-call-delta":
                message["tool_calls"][now["index"]]["function"]["arguments"] += part["tool_calls"]["function"][
                    "arguments"
                ]
            case "citation-start":
                message.setdefault("citations", []).append(part["citations"])
            case "message-end":
                found |= delta
            case _:
                pass
    return found


def by_ollama(data: bytes, path: str) -> Any:
    """The last of everything, and the text of all."""
    import ollama

    api = ollama.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=data)))
    chat = path.endswith("/api/chat")
    pieces = api.chat(model="any", stream=True) if chat else api.generate(model="any", stream=True)
    whole: dict[str, Any] = {}
    joined = ""
    for piece in map(plain, pieces):
        joined += piece["message"].get("content") or "" if chat else piece.get("response") or ""
        whole |= piece
    return {**whole, "message": {**whole["message"], "content": joined}} if chat else {**whole, "response": joined}


def compare_answers(name: str, recorded: RecordedExchange, call: Call) -> tuple[Any, Any]:
    """What we make of a stream in random pieces, and what the SDK makes of it, in one form."""
    ours, data = in_pieces(name, recorded, call), unpacked_body(recorded)
    match call.dialect:
        case "gemini":
            return by_google_whole(ours), by_google(data)
        case "bedrock_converse":
            return by_converse_whole(ours), by_converse(data)
        case "cohere_v1":
            return ours, by_cohere_v1(data)
        case "cohere_v2":
            return ours, by_cohere_v2(data)
        case "ollama":
            return ours, by_ollama(data, recorded.url)
        case _:
            return _compare_invocation(ours, by_invoke(data), call)


def _compare_invocation(ours: Any, chunks: list[Any], call: Call) -> tuple[Any, Any]:
    if chunks[0].get("type") == "message_start":
        theirs = by_anthropic(as_anthropic(chunks))
        return {name: value for name, value in ours.items() if not name.startswith("amazon-")}, theirs
    last = {name: value for name, value in chunks[-1].items() if name.startswith("amazon-")}
    usage = last.get("amazon-bedrock-invocationMetrics", {})
    counts = {"input": usage.get("inputTokenCount"), "output": usage.get("outputTokenCount")}
    counted = {"input": call.usage.input_tokens, "output": call.usage.output_tokens} if usage else counts
    mine = {"text": call.text or "", **counted, **{name: ours.get(name) for name in last}}
    return mine, {"text": texts(chunks), **counts, **last}


STREAMS = {"gemini": 19, "bedrock_converse": 27, "bedrock_invoke": 39, "cohere_v1": 2, "cohere_v2": 10, "ollama": 14}
"""How many the corpus has."""


@pytest.mark.parametrize("dialect", STREAMS)
def test_every_recorded_stream_is_what_the_official_sdk_says(dialect: str) -> None:
    found = streams(dialect)
    apart = []
    for name, recorded, call in found:
        ours, theirs = (
            without_defaults(json.loads(json.dumps(one, default=str))) for one in compare_answers(name, recorded, call)
        )
        apart += [(name, place) for place in differences(ours, theirs)]
    assert apart == []
    assert len(found) >= STREAMS[dialect]


@pytest.mark.parametrize("dialect", STREAMS)
def test_the_judge_would_see_a_letter_that_is_lost(dialect: str) -> None:
    name, recorded, call = next(one for one in streams(dialect) if one[2].text)
    ours, theirs = compare_answers(name, recorded, call)
    text = call.text or ""
    lost = json.loads(json.dumps(ours, default=str).replace(json.dumps(text)[1:-1], json.dumps(text[:-1])[1:-1]))
    assert list(differences(without_defaults(lost), without_defaults(json.loads(json.dumps(theirs, default=str)))))
