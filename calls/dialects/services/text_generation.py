"""Text generation by Hugging Face's TGI, alone or behind its endpoints; by Aleph Alpha's `complete`; and by local servers in shapes of
their own: llama.cpp, vLLM, SGLang.

An answer is `generated_text`, alone or in a list of one; a stream has one token in each event, and the last event has the whole text.
llama.cpp has `content`, in a stream in pieces, and `stop` in the last event. vLLM and SGLang have `text`, in a stream the whole
so far; vLLM has no end marker, SGLang has `[DONE]`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.framing import Framing, nul, sse
from calls.model import Headers, Json, Usage

_ENDPOINTS: Final = re.compile(r".+\.endpoints\.huggingface\.cloud|api-inference\.huggingface\.co")
_ROUTED: Final = re.compile(r"/hf-inference(/(?:models|pipeline)/.+)")
_MODEL: Final = re.compile(
    r"/models/(?P<model>.+?)(?:/pipeline/(?P<task>[\w-]+))?|/pipeline/(?P<of>[\w-]+)/(?P<name>.+)"
)
_NEARBY: Final = re.compile(r"[\d.]+|[^.]*|.+\.(local|internal|lan)")
_TASKS: Final = {"feature-extraction": "embeddings", "text-generation": "text_completion"}
"""Operations by Hugging Face's names of tasks; other tasks are operations under their own names."""


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `/generate` and `/generate_stream`, llama.cpp's paths at local hosts, and all paths of hosts that serve nothing else."""
    if method != "POST":
        return None
    if path in ("/generate", "/generate_stream"):
        key_path, streams = path.removesuffix("_stream"), path.endswith("_stream")
        return Claim(operation="text_completion", kind="model", path=key_path, streams=streams)
    if path in ("/completion", "/infill") and _NEARBY.fullmatch(host):
        return Claim(operation="text_completion", kind="model")
    routed = _ROUTED.fullmatch(path) if host == "router.huggingface.co" else None
    if routed or _ENDPOINTS.fullmatch(host) or (host == "api.aleph-alpha.com" and path == "/complete"):
        return _claim_model_path(routed[1] if routed else path)
    return None


def _claim_model_path(path: str) -> Claim:
    """Claim a path with its model and task, where it names them."""
    match = _MODEL.fullmatch(path)
    task = (match["task"] or match["of"] if match else None) or "text-generation"
    operation = _TASKS.get(task) or task.replace("-", "_")
    model = match["model"] or match["name"] if match else None
    return Claim(operation=operation, kind="model", model=model)


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, where the body names it."""
    return RequestSummary(model=as_text_or_none(as_object(body).get("model")))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text and usage."""
    first = as_array(answer)
    fields = as_object(first[0]) if first else as_object(answer)
    completions = as_array(fields.get("completions"))
    completion = as_object(completions[0]) if completions else {}
    details = as_object(fields.get("details"))
    meta = as_object(fields.get("meta_info"))
    texts = (
        fields.get("generated_text"),
        completion.get("completion"),
        fields.get("content"),
        *_text_values(fields.get("text")),
    )
    ends = (details.get("finish_reason"), completion.get("finish_reason"), fields.get("stop_type"))
    return AnswerSummary(
        model=as_text_or_none(fields.get("model_version")) or as_text_or_none(fields.get("model")),
        text=_first_text(texts),
        finish_reason=_first_text((*ends, as_object(meta.get("finish_reason")).get("type"))),
        usage=Usage(
            input_tokens=_first_count(
                fields.get("num_tokens_prompt_total"),
                *(details.get("input_length"), fields.get("tokens_evaluated"), meta.get("prompt_tokens")),
            ),
            output_tokens=_first_count(
                fields.get("num_tokens_generated"),
                *(details.get("generated_tokens"), fields.get("tokens_predicted"), meta.get("completion_tokens")),
            ),
        ),
    )


def _text_values(fields: Json) -> Sequence[Json]:
    """The texts: vLLM has a list, SGLang one."""
    return (fields,) if isinstance(fields, str) else as_array(fields)[:1]


def _first_text(values: Iterable[Json]) -> str | None:
    return next((word for value in values if (word := as_text_or_none(value))), None)


def _first_count(*values: Json) -> int | None:
    return next((number for value in values if (number := as_count(value)) is not None), None)


_FRAMINGS: Final[tuple[Framing, ...]] = (sse, nul)


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, TextGenerationStream(), _FRAMINGS)


class TextGenerationStream:
    """The tokens of one streamed text."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._whole: dict[str, Json] = {}
        self._pieces: list[str] = []
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Add one token; the last event has the whole text and the details."""
        self._has_ended = self._has_ended or data.strip() == "[DONE]"
        fields = parse_payload(data)
        if "content" in fields or "text" in fields:
            self._pieces.append(as_text(fields.get("content")))
            self._whole |= fields
            return
        token = as_object(fields.get("token"))
        if token.get("special") is not True:
            self._tokens.append(as_text(token.get("text")))
        self._add_whole_text(fields)

    @property
    def answer(self) -> Json:
        """The text so far."""
        joined: dict[str, Json] = {"generated_text": "".join(self._tokens)} if any(self._tokens) else {}
        content: dict[str, Json] = {"content": "".join(self._pieces)} if "content" in self._whole else {}
        return {**joined, **self._whole, **content} or None

    @property
    def is_complete(self) -> bool | None:
        """Whether the whole text arrived; None for vLLM's own server, which has no end marker."""
        if "error" in self._whole:
            return False
        if "text" in self._whole:
            return self._has_ended if "meta_info" in self._whole else None
        return "generated_text" in self._whole or self._whole.get("stop") is True

    def _add_whole_text(self, fields: Mapping[str, Json]) -> None:
        names = ("generated_text", "details", "error", "error_type")
        self._whole |= {name: fields[name] for name in names if fields.get(name) is not None}


def compose_answer(parts: AnswerParts) -> Json | None:
    """Make a text in the form of the server that takes such a request. It has no tool calls."""
    if parts.operation != "text_completion" or parts.tool_calls:
        return None
    reason = parts.finish_word("eos_token", "eos_token")
    match parts:
        case _ if parts.path.endswith(("/completion", "/infill")):  # llama.cpp
            counts: dict[str, Json] = {"tokens_predicted": parts.output_tokens, "tokens_evaluated": parts.input_tokens}
            end: dict[str, Json] = {"stop": True, "stop_type": parts.finish_word("eos", "eos"), "truncated": False}
            return {"index": 0, "content": parts.text, "model": parts.model, **counts, **end}
        case _ if parts.path == "/complete":  # Aleph Alpha
            completion: Json = {"completion": parts.text, "finish_reason": parts.finish_word("end_of_text", "")}
            counts = {"num_tokens_prompt_total": parts.input_tokens, "num_tokens_generated": parts.output_tokens}
            return {"id": parts.id, "model_version": parts.model, "completions": [completion], **counts}
        case _ if "text" in parts.request or "input_ids" in parts.request:  # SGLang
            counts = {"prompt_tokens": parts.input_tokens, "completion_tokens": parts.output_tokens}
            word: Json = {"type": parts.finish_word("stop", "stop")}
            return {"text": parts.text, "meta_info": {"id": parts.id, "finish_reason": word, **counts}}
        case _ if "prompt" in parts.request:  # vLLM, which repeats the prompt
            return {"text": [as_text(parts.request.get("prompt")) + (parts.text or "")]}
        case _:
            counts = {"generated_tokens": parts.output_tokens, "input_length": parts.input_tokens}
            text: Json = {"generated_text": parts.text, "details": {"finish_reason": reason, **counts}}
            is_alone = parts.path.endswith(("/generate", "/invocations")) or parts.request.get("stream") is True
            return text if is_alone else [text]


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make the vectors of Hugging Face's feature extraction: a list of them."""
    vectors = parts.vectors
    return [*vectors] if vectors and parts.operation == "embeddings" else None


def write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes] | None:
    """Write the whole text as one event, and SGLang's end marker; None for an answer in another form, such as a list."""
    match answer:
        case {"generated_text": text}:
            token: Json = {"id": 1, "text": text, "logprob": 0.0, "special": False}
            return iter([sse_message("", {"index": 1, "token": token, "details": None, **answer})])
        case {"text": _, "meta_info": _}:
            return iter([sse_message("", dict(answer)), sse_message("", "[DONE]")])
        case {"content": _}:
            return iter([sse_message("", dict(answer))])
        case _:
            return None


DIALECT: Final = Dialect(
    name="text_generation",
    claim=claim,
    precedence=2,  # claims every path of hosts that serve nothing else
    services=(
        Service(
            provider="huggingface",
            hosts=("router.huggingface.co",),
            host_pattern=r".+\.endpoints\.huggingface\.cloud|(api-inference\.)?huggingface\.co",
            only_models=False,
        ),
        Service(provider="aleph_alpha", hosts=("api.aleph-alpha.com",)),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": write_stream},
    compose_answer=compose_answer,
    compose_results=_compose_results,
)
