"""AWS Bedrock's InvokeModel: the body of each model, whole or in pieces within an event stream.

It is a carrier: what it carries is an Anthropic message, a Converse turn (Nova), an OpenAI completion, a Cohere chat or one of the
plain text models, and it reads them as those dialects do. Which one it is, the first chunk tells: a path may name no more than an
account's own profile. Bedrock adds its counts to the last chunk.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import count, elements, members, some
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.anthropic import messages as anthropic
from calls.dialects.aws import bedrock_converse
from calls.dialects.aws import bedrock_text_models as bedrock_texts
from calls.dialects.aws.bedrock_converse import FRAMINGS, Turn, in_plain_letters, parts_of, without_account
from calls.dialects.openai import chat as openai_chat
from calls.dialects.parts.assembly import Accumulator, AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.dialects.services import cohere_v1, rerank
from calls.model import Headers, Json, Usage, header

NAME: Final = "bedrock_invoke"

_VERBS: Final[Mapping[str, str]] = {
    "invoke": "invoke",
    "invoke-with-response-stream": "invoke",
    "count-tokens": "count-tokens",
}
"""A verb as it counts in a key. Whether the answer is a stream is not what is asked."""

_ASYNC: Final = re.compile(r"/async-invoke(?:/([^/]+))?")
_MODEL: Final = re.compile(
    r"([a-z-]+\.)?(amazon|anthropic|ai21|cohere|deepseek|luma|meta|mistral|openai|qwen|stability|twelvelabs|writer)\.\w"
)
"""How Bedrock names models: at a gateway they tell what the host does not."""

_METRICS: Final = "amazon-bedrock-invocationMetrics"
_MAKERS: Final = (
    (re.compile(r".*embed.*"), "embeddings"),
    (re.compile(r".*\.rerank.*"), "rerank"),
    (re.compile(r".*(-image-|nova-canvas|stability\.|\.sd3|stable-image).*"), "image_generation"),
    (re.compile(r".*(nova-reel|luma\.ray).*"), "video_generation"),
)
"""Models that do not chat: Titan's, Cohere's and Nova's embeddings (`nova-2-multimodal-embeddings`), rerankers, painters."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """`…/model/ID/invoke`, asked of AWS or with its signature: the path alone may be anybody's."""
    if match := _ASYNC.fullmatch(path):
        return _in_the_background(method, host, match)
    way, model, verb = parts_of(path)
    if method != "POST" or not model or verb not in _VERBS or not _is_aws(host, model, headers):
        return None
    return Claim(
        dialect=NAME,
        operation=_operation(verb, model),
        kind="model",
        path=without_account(f"{way}/model/{model}/{_VERBS[verb]}"),
        model=in_plain_letters(model),
        streams=verb.endswith("stream"),
    )


def _is_aws(host: str, model: str, headers: Headers) -> bool:
    return "bedrock" in host or header(headers, "x-amz-date") is not None or _MODEL.match(model) is not None


def _in_the_background(method: str, host: str, match: re.Match[str]) -> Claim | None:
    """Work that goes on after its answer (Nova's videos, embeddings of files), and whoever asks after it."""
    if "bedrock" not in host:
        return None
    match method, match[1]:
        case "POST", None:
            return Claim(dialect=NAME, operation="invoke", kind="model")
        case "GET", str() as work:
            return Claim(dialect=NAME, operation="poll", kind="model", polls=in_plain_letters(work))
        case _:
            return None


def _operation(verb: str, model: str) -> str:
    if verb == "count-tokens":
        return "count_tokens"
    return next((operation for shape, operation in _MAKERS if shape.fullmatch(model)), "chat")


def asked(body: Json) -> RequestSummary:
    """The tool results of a message or a turn, whichever the body is."""
    results = (*anthropic.asked(body).tool_results, *bedrock_converse.asked(body).tool_results)
    return RequestSummary(model=some(members(body).get("modelId")), tool_results=results)


def told(answer: Json) -> AnswerSummary:
    """What the model said, and what Bedrock counted where the model does not."""
    said = members(answer)
    if "invocationArn" in said:
        return _going_on(said)
    inner = _told(said)
    metrics = members(said.get(_METRICS))
    if inner.usage != Usage() or not metrics:
        return inner
    return replace(inner, usage=_counted(metrics))


def _going_on(said: Mapping[str, Json]) -> AnswerSummary:
    status = some(said.get("status"))
    going_on = status in (None, "InProgress")
    return AnswerSummary(finish_reason=status, pending=some(said.get("invocationArn")) if going_on else None)


def _told(answer: Mapping[str, Json]) -> AnswerSummary:
    match answer:
        case {"type": "message"} | {"completion": _}:
            return anthropic.told(answer)
        case {"output": {"message": _}}:
            return bedrock_converse.told(answer)
        case {"choices": _}:
            return _of_choices(answer)
        case {"results": [{"relevance_score": _}, *_]}:
            return rerank.told(answer)
        case {"message": str() as said, "finishReason": reason}:  # Twelve Labs
            return AnswerSummary(text=said, finish_reason=some(reason))
        case {"generation_id": _} | {"response_id": _}:
            return cohere_v1.told(answer)
        case _:
            family = next((one for name, one in bedrock_texts.ANSWERS.items() if name in answer), None)
            return (
                family.told(answer)
                if family
                else AnswerSummary(usage=Usage(input_tokens=count(answer.get("inputTokens"))))
            )


def _of_choices(answer: Mapping[str, Json]) -> AnswerSummary:
    """OpenAI's shape; DeepSeek and Mistral on Bedrock have names of their own in it."""
    found = openai_chat.told(answer)
    choices = elements(answer.get("choices"))
    choice = members(choices[0]) if choices else {}
    reason = found.finish_reason or some(choice.get("stop_reason"))
    return replace(found, text=found.text or some(choice.get("text")), finish_reason=reason)


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, BedrockInvokeStream(), FRAMINGS)


class BedrockInvokeStream:
    """The chunks of one streamed answer, whoever's shape they have."""

    def __init__(self) -> None:
        self._inner: Accumulator | None = None
        self._bedrock: dict[str, Json] = {}
        self._error: Json = None

    def take(self, event: str, data: str) -> None:
        """Take one chunk, or an exception under HTTP 200."""
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **payload(data)}
            return
        chunk: dict[str, Json] = {}
        for name, value in payload(_opened(payload(data).get("bytes"))).items():
            (self._bedrock if name.startswith("amazon-bedrock-") else chunk)[name] = value
        if chunk:
            self._inner = self._inner or _inner(chunk)
            self._inner.take("", dumps(chunk).decode())

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        whole = dict(members(self._inner.answer)) if self._inner else {}
        whole |= self._bedrock
        if self._error is not None:
            return {**whole, "error": self._error} if whole else self._error
        return whole or None

    @property
    def complete(self) -> bool:
        """Whether the model ended, or Bedrock sent its counts, which come last, or a guardrail stepped in; and no error."""
        ended = self._inner is not None and self._inner.complete is True
        stopped = self._bedrock.get("amazon-bedrock-guardrailAction") == "INTERVENED"
        return self._error is None and (ended or stopped or _METRICS in self._bedrock)


def _inner(chunk: Mapping[str, Json]) -> Accumulator:
    """The stream that begins with this chunk."""
    match chunk:
        case {"type": _} | {"completion": _}:
            return anthropic.AnthropicMessagesStream()
        case {"choices": [first, *_]} if "delta" not in members(first):
            return bedrock_texts.Choices()
        case {"choices": _}:
            return openai_chat.ChatStream()
        case {"event_type": _}:
            return cohere_v1.CohereV1Stream()
        case _:
            family = next((one for name, one in bedrock_texts.CHUNKS.items() if name in chunk), None)
            return bedrock_texts.BedrockTextModelsStream(family) if family else _Nova()


class _Nova:
    """Converse's events, each as the one member of a chunk."""

    def __init__(self) -> None:
        self._turn = Turn()

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # a chunk has no name
        """Take one chunk."""
        for name, value in payload(data).items():
            self._turn.take(name, members(value))

    @property
    def answer(self) -> Json:
        """The turn so far."""
        return self._turn.whole()

    @property
    def complete(self) -> bool:
        """Whether the turn ended and was counted."""
        return self._turn.ended and self._turn.counted


def _opened(written: Json) -> str:
    """The bytes that a chunk carries, as text."""
    try:
        return base64.b64decode(written if isinstance(written, str) else "").decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


def _counted(metrics: Mapping[str, Json]) -> Usage:
    return Usage(
        input_tokens=count(metrics.get("inputTokenCount")),
        output_tokens=count(metrics.get("outputTokenCount")),
        cached_tokens=count(metrics.get("cacheReadInputTokenCount")),
    )
