"""AWS Bedrock's InvokeModel: the body of each model, whole or in pieces within an event stream.

It is a carrier: it carries an Anthropic message, a Converse turn (Nova), an OpenAI completion, a Cohere chat or the answer of a
plain text model, and reads them as those dialects do. The first chunk determines which, because a path may only name an
account's inference profile. Bedrock adds its counts to the last chunk.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_count, as_object, as_text_or_none
from calls.dialects.anthropic import messages as anthropic
from calls.dialects.anthropic.messages_writer import compose_message, message_events
from calls.dialects.aws import bedrock_converse
from calls.dialects.aws import bedrock_text_models as bedrock_texts
from calls.dialects.aws.bedrock_converse import FRAMINGS, Turn, remove_account, split_model_path, unescape_model
from calls.dialects.aws.converse_writer import compose_turn, event_frame, turn_events
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.openai import chat as openai_chat
from calls.dialects.openai.chat_writer import chat_chunks, compose_chat_answer
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import streamed_by_path
from calls.dialects.parts.assembly import Accumulator, AccumulatorAssembly
from calls.dialects.parts.error_bodies import message_error
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.services import cohere_v1, rerank
from calls.model import Headers, Json, Usage, header

_VERBS: Final[Mapping[str, str]] = {
    "invoke": "invoke",
    "invoke-with-response-stream": "invoke",
    "count-tokens": "count-tokens",
}
"""The verb that counts in a key: streaming does not."""

_ASYNC: Final = re.compile(r"/async-invoke(?:/([^/]+))?")
_MODEL: Final = re.compile(
    r"([a-z-]+\.)?(amazon|anthropic|ai21|cohere|deepseek|luma|meta|mistral|openai|qwen|stability|twelvelabs|writer)\.\w"
)
"""How Bedrock names models, by which a request to a gateway is recognised."""

_SPEAKS_CHAT: Final = re.compile(
    r"openai\.|qwen\.|writer\.|ai21\.jamba|deepseek\.v|mistral\.(pixtral|magistral|ministral|voxtral|mistral-large-2[45])"
)
"""Models whose bodies are OpenAI's chat completions."""

_METRICS: Final = "amazon-bedrock-invocationMetrics"
_MAKERS: Final = (
    (re.compile(r".*embed.*"), "embeddings"),
    (re.compile(r".*\.rerank.*"), "rerank"),
    (re.compile(r".*(-image-|nova-canvas|stability\.|\.sd3|stable-image).*"), "image_generation"),
    (re.compile(r".*(nova-reel|luma\.ray).*"), "video_generation"),
)
"""Models that do not chat: Titan's, Cohere's and Nova's embeddings (`nova-2-multimodal-embeddings`), rerankers, image models."""


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim `…/model/ID/invoke` at AWS, with its signature, or with a model named as on Bedrock: the path alone is not enough."""
    if match := _ASYNC.fullmatch(path):
        return _claim_async(method, host, match)
    prefix, model, verb = split_model_path(path)
    if method != "POST" or not model or verb not in _VERBS or not _is_aws(host, model, headers):
        return None
    return Claim(
        operation=_operation(verb, model),
        kind="model",
        path=remove_account(f"{prefix}/model/{model}/{_VERBS[verb]}"),
        model=unescape_model(model),
        streams=verb.endswith("stream"),
    )


def _is_aws(host: str, model: str, headers: Headers) -> bool:
    return "bedrock" in host or header(headers, "x-amz-date") is not None or _MODEL.match(model) is not None


def _claim_async(method: str, host: str, match: re.Match[str]) -> Claim | None:
    """Claim asynchronous work (Nova's videos, embeddings of files), and polls for it."""
    if "bedrock" not in host:
        return None
    match method, match[1]:
        case "POST", None:
            return Claim(operation="invoke", kind="model")
        case "GET", str() as work:
            return Claim(operation="poll", kind="model", polls=unescape_model(work))
        case _:
            return None


def _operation(verb: str, model: str) -> str:
    if verb == "count-tokens":
        return "count_tokens"
    return next((operation for shape, operation in _MAKERS if shape.fullmatch(model)), "chat")


def summarize_request(body: Json) -> RequestSummary:
    """Find the tool results of a message or a turn."""
    results = (*anthropic.summarize_request(body).tool_results, *bedrock_converse.summarize_request(body).tool_results)
    return RequestSummary(model=as_text_or_none(as_object(body).get("modelId")), tool_results=results)


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find what the model answered, with Bedrock's token counts where it has none."""
    fields = as_object(answer)
    if "invocationArn" in fields:
        return _summarize_async(fields)
    inner = _summarize_model_answer(fields)
    metrics = as_object(fields.get(_METRICS))
    if inner.usage != Usage() or not metrics:
        return inner
    return replace(inner, usage=_metrics_usage(metrics))


def _summarize_async(fields: Mapping[str, Json]) -> AnswerSummary:
    status = as_text_or_none(fields.get("status"))
    is_pending = status in (None, "InProgress")
    return AnswerSummary(
        finish_reason=status, pending=as_text_or_none(fields.get("invocationArn")) if is_pending else None
    )


def _summarize_model_answer(answer: Mapping[str, Json]) -> AnswerSummary:
    match answer:
        case {"type": "message"} | {"completion": _}:
            return anthropic.summarize_answer(answer)
        case {"output": {"message": _}}:
            return bedrock_converse.summarize_answer(answer)
        case {"choices": _}:
            return _summarize_choices(answer)
        case {"results": [{"relevance_score": _}, *_]}:
            return rerank.summarize_answer(answer)
        case {"message": str() as text, "finishReason": reason}:  # Twelve Labs
            return AnswerSummary(text=text, finish_reason=as_text_or_none(reason))
        case {"generation_id": _} | {"response_id": _}:
            return cohere_v1.summarize_answer(answer)
        case _:
            family = next((one for name, one in bedrock_texts.ANSWERS.items() if name in answer), None)
            return (
                family.summarize_answer(answer)
                if family
                else AnswerSummary(usage=Usage(input_tokens=as_count(answer.get("inputTokens"))))
            )


def _summarize_choices(answer: Mapping[str, Json]) -> AnswerSummary:
    """Summarize OpenAI's shape, in which DeepSeek and Mistral on Bedrock have names of their own."""
    found = openai_chat.summarize_answer(answer)
    choices = as_array(answer.get("choices"))
    choice = as_object(choices[0]) if choices else {}
    reason = found.finish_reason or as_text_or_none(choice.get("stop_reason"))
    return replace(found, text=found.text or as_text_or_none(choice.get("text")), finish_reason=reason)


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, BedrockInvokeStream(), FRAMINGS)


class BedrockInvokeStream:
    """The chunks of one streamed answer, in the shape of any model."""

    def __init__(self) -> None:
        self._open_model_stream: Accumulator | None = None
        self._bedrock: dict[str, Json] = {}
        self._error: Json = None

    def add_message(self, event: str, data: str) -> None:
        """Add one chunk, or an exception under HTTP 200."""
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **parse_payload(data)}
            return
        chunk: dict[str, Json] = {}
        for name, value in parse_payload(_decode_chunk(parse_payload(data).get("bytes"))).items():
            (self._bedrock if name.startswith("amazon-bedrock-") else chunk)[name] = value
        if chunk:
            self._open_model_stream = self._open_model_stream or _open_model_stream(chunk)
            self._open_model_stream.add_message("", dumps(chunk).decode())

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        whole = dict(as_object(self._open_model_stream.answer)) if self._open_model_stream else {}
        whole |= self._bedrock
        if self._error is not None:
            return {**whole, "error": self._error} if whole else self._error
        return whole or None

    @property
    def is_complete(self) -> bool:
        """Whether the model ended, or Bedrock sent its counts (which come last), or a guardrail intervened; and no error."""
        is_model_finished = self._open_model_stream is not None and self._open_model_stream.is_complete is True
        stopped = self._bedrock.get("amazon-bedrock-guardrailAction") == "INTERVENED"
        return self._error is None and (is_model_finished or stopped or _METRICS in self._bedrock)


def _open_model_stream(chunk: Mapping[str, Json]) -> Accumulator:
    """Make the accumulator for the stream that begins with this chunk."""
    match chunk:
        case {"type": _} | {"completion": _}:
            return anthropic.AnthropicMessagesStream()
        case {"choices": [first, *_]} if "delta" not in as_object(first):
            return bedrock_texts.ChoicesStream()
        case {"choices": _}:
            return openai_chat.ChatStream()
        case {"event_type": _}:
            return cohere_v1.CohereV1Stream()
        case _:
            family = next((one for name, one in bedrock_texts.CHUNKS.items() if name in chunk), None)
            return bedrock_texts.BedrockTextModelsStream(family) if family else _Nova()


class _Nova:
    """Converse's events, each as the only member of a chunk."""

    def __init__(self) -> None:
        self._turn = Turn()

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # a chunk has no name
        """Add one chunk."""
        for name, value in parse_payload(data).items():
            self._turn.add(name, as_object(value))

    @property
    def answer(self) -> Json:
        """The turn so far."""
        return self._turn.build()

    @property
    def is_complete(self) -> bool:
        """Whether the turn ended and its usage arrived."""
        return self._turn.has_ended and self._turn.has_usage


def _decode_chunk(encoded: Json) -> str:
    """Decode the bytes in a chunk as text."""
    try:
        return base64.b64decode(encoded if isinstance(encoded, str) else "").decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


def _metrics_usage(metrics: Mapping[str, Json]) -> Usage:
    return Usage(
        input_tokens=as_count(metrics.get("inputTokenCount")),
        output_tokens=as_count(metrics.get("outputTokenCount")),
        cached_tokens=as_count(metrics.get("cacheReadInputTokenCount")),
    )


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make an answer in the form that the model has; None for one that makes no text, or whose form is not known."""
    if parts.operation != "chat":
        return None
    model = parts.model
    if "anthropic." in model:
        return compose_message(parts)
    if "amazon.nova" in model:
        return compose_turn(parts)
    if "cohere.command-r" in model:
        return cohere_v1.compose_answer(parts)
    if _SPEAKS_CHAT.search(model):
        return compose_chat_answer(parts)
    return None if parts.tool_calls else bedrock_texts.compose_text(parts)


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make embeddings, a ranking or images, in the form of their maker."""
    match parts.operation:
        case "embeddings" if "cohere." in parts.model:
            return cohere_v1.compose_results(parts)
        case "embeddings" if (vectors := parts.vectors) and "amazon.titan" in parts.model:
            return {"embedding": vectors[0], "inputTextTokenCount": parts.input_tokens}
        case "rerank" if ranks := parts.ranks:
            return {"results": [{"index": index, "relevance_score": score} for index, score in ranks]}
        case "image_generation" if (pictures := parts.pictures) and "amazon." in parts.model:
            return {"images": pictures, "error": None}
        case "image_generation" if pictures := parts.pictures:
            nothing: list[Json] = [None] * len(pictures)
            return {"images": pictures, "seeds": list(range(len(pictures))), "finish_reasons": nothing}
        case _:
            return None


def _write_stream(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Iterator[bytes] | None:
    """Write the answer in the chunks of its model; None for one that is not streamed."""
    match answer:
        case {"type": "message"}:
            return (_carrying_chunk(event) for _, event in message_events(answer))
        case {"output": {"message": _}}:
            return (_carrying_chunk({name: event}) for name, event in turn_events(answer))
        case {"generation_id": _}:
            return map(_carrying_chunk, cohere_v1.answer_events(answer))
        case {"choices": [Mapping() as choice, *_]} if "message" in choice:
            return map(_carrying_chunk, _chat_chunks(answer, {**request, "stream_options": {"include_usage": True}}))
        case _:
            chunk = bedrock_texts.text_chunk(answer)
            return None if chunk is None else iter([_carrying_chunk(chunk)])


def _chat_chunks(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Iterator[Json]:
    """The chunks of a chat, and Bedrock's counts in place of an end marker."""
    yield from chat_chunks({name: answer[name] for name in answer if name != _METRICS}, request)
    usage = as_object(answer.get("usage"))
    counts = {"inputTokenCount": usage.get("prompt_tokens"), "outputTokenCount": usage.get("completion_tokens")}
    yield {_METRICS: answer.get(_METRICS, counts)}


def _carrying_chunk(carried: Json) -> bytes:
    return event_frame("chunk", {"bytes": base64.b64encode(dumps(carried)).decode()})


DIALECT: Final = Dialect(
    name="bedrock_invoke",
    claim=claim,
    headers=("x-amz-date",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=streamed_by_path("eventstream"),
    stream_writers={"eventstream": _write_stream},
    compose_answer=_compose_answer,
    compose_results=_compose_results,
    answer_paths=AnswerPaths(
        texts=("content/*/text", "output/message/content/*/text"),
        calls=("content/*", "output/message/content/*/toolUse"),
        arguments=("input",),
    ),
    error_body=message_error,
    error_headers=bedrock_converse.error_headers,
)
