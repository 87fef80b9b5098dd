"""Text generation as Hugging Face serves it (TGI), alone or behind its endpoints; and Aleph Alpha's `complete`;
and as servers on a machine nearby do in shapes of their own: llama.cpp, vLLM, SGLang.

An answer is `generated_text`, alone or in a list of one; a stream is one token an event, and the last event has the whole text. llama.cpp
says `content`, in a stream piece by piece, and `stop` in the last event. vLLM and SGLang say `text`, in a stream all of it so far; vLLM has no end
mark, SGLang has `[DONE]`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.framing import Framing, nul, sse
from calls.model import Headers, Json, Usage

NAME: Final = "text_generation"

_ENDPOINTS: Final = re.compile(r".+\.endpoints\.huggingface\.cloud|api-inference\.huggingface\.co")
_ROUTED: Final = re.compile(r"/hf-inference(/(?:models|pipeline)/.+)")
_MODEL: Final = re.compile(
    r"/models/(?P<model>.+?)(?:/pipeline/(?P<task>[\w-]+))?|/pipeline/(?P<of>[\w-]+)/(?P<name>.+)"
)
_NEARBY: Final = re.compile(r"[\d.]+|[^.]*|.+\.(local|internal|lan)")
_TASKS: Final = {"feature-extraction": "embeddings", "text-generation": "text_completion"}
"""What Hugging Face calls what a model is asked to do; other tasks are operations by their own names."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """`/generate` and `/generate_stream`, llama.cpp's paths nearby, and the bare paths of hosts that serve nothing else."""
    if method != "POST":
        return None
    if path in ("/generate", "/generate_stream"):
        place, streams = path.removesuffix("_stream"), path.endswith("_stream")
        return Claim(dialect=NAME, operation="text_completion", kind="model", path=place, streams=streams)
    if path in ("/completion", "/infill") and _NEARBY.fullmatch(host):
        return Claim(dialect=NAME, operation="text_completion", kind="model")
    routed = _ROUTED.fullmatch(path) if host == "router.huggingface.co" else None
    if routed or _ENDPOINTS.fullmatch(host) or (host == "api.aleph-alpha.com" and path == "/complete"):
        return _named(routed[1] if routed else path)
    return None


def _named(path: str) -> Claim:
    """The model and its task, where the path names them."""
    named = _MODEL.fullmatch(path)
    task = (named["task"] or named["of"] if named else None) or "text-generation"
    operation = _TASKS.get(task) or task.replace("-", "_")
    model = named["model"] or named["name"] if named else None
    return Claim(dialect=NAME, operation=operation, kind="model", model=model)


def asked(body: Json) -> RequestSummary:
    """The model, where the body names it."""
    return RequestSummary(model=some(members(body).get("model")))


def told(answer: Json) -> AnswerSummary:
    """What was generated."""
    first = elements(answer)
    said = members(first[0]) if first else members(answer)
    completions = elements(said.get("completions"))
    completion = members(completions[0]) if completions else {}
    details = members(said.get("details"))
    meta = members(said.get("meta_info"))
    texts = (said.get("generated_text"), completion.get("completion"), said.get("content"), *_texts(said.get("text")))
    ends = (details.get("finish_reason"), completion.get("finish_reason"), said.get("stop_type"))
    return AnswerSummary(
        model=some(said.get("model_version")) or some(said.get("model")),
        text=_first(texts),
        finish_reason=_first((*ends, members(meta.get("finish_reason")).get("type"))),
        usage=Usage(
            input_tokens=_count(
                said.get("num_tokens_prompt_total"),
                *(details.get("input_length"), said.get("tokens_evaluated"), meta.get("prompt_tokens")),
            ),
            output_tokens=_count(
                said.get("num_tokens_generated"),
                *(details.get("generated_tokens"), said.get("tokens_predicted"), meta.get("completion_tokens")),
            ),
        ),
    )


def _texts(said: Json) -> Sequence[Json]:
    """vLLM says a list of texts, SGLang one."""
    return (said,) if isinstance(said, str) else elements(said)[:1]


def _first(values: Iterable[Json]) -> str | None:
    return next((word for value in values if (word := some(value))), None)


def _count(*values: Json) -> int | None:
    return next((number for value in values if (number := count(value)) is not None), None)


_FRAMINGS: Final[tuple[Framing, ...]] = (sse, nul)


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, TextGenerationStream(), _FRAMINGS)


class TextGenerationStream:
    """The tokens of one streamed text."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._whole: dict[str, Json] = {}
        self._pieces: list[str] = []
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Take one token; the last one brings the whole text and the details."""
        self._done = self._done or data.strip() == "[DONE]"
        said = payload(data)
        if "content" in said or "text" in said:
            self._pieces.append(text(said.get("content")))
            self._whole |= said
            return
        token = members(said.get("token"))
        if token.get("special") is not True:
            self._tokens.append(text(token.get("text")))
        self._take_whole(said)

    @property
    def answer(self) -> Json:
        """The text so far."""
        joined: dict[str, Json] = {"generated_text": "".join(self._tokens)} if any(self._tokens) else {}
        content: dict[str, Json] = {"content": "".join(self._pieces)} if "content" in self._whole else {}
        return {**joined, **self._whole, **content} or None

    @property
    def complete(self) -> bool | None:
        """Whether the whole text came; vLLM's own server does not say."""
        if "error" in self._whole:
            return False
        if "text" in self._whole:
            return self._done if "meta_info" in self._whole else None
        return "generated_text" in self._whole or self._whole.get("stop") is True

    def _take_whole(self, said: Mapping[str, Json]) -> None:
        names = ("generated_text", "details", "error", "error_type")
        self._whole |= {name: said[name] for name in names if said.get(name) is not None}
