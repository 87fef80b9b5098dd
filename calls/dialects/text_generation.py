"""Text generation as Hugging Face serves it (TGI), alone, behind its endpoints or behind SageMaker's; and Aleph Alpha's `complete`.

An answer is `generated_text`, alone or in a list of one; a stream is one token an event, and the last event has the whole text.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.dialects import Asked, Assembly, Claim, Told
from calls.dialects.assembly import Reading
from calls.dialects.pieces import payload
from calls.model import Headers, Json, Usage
from calls.shape import count, elements, members, some, text

NAME: Final = "text_generation"

_ENDPOINTS: Final = re.compile(r".+\.endpoints\.huggingface\.cloud|api-inference\.huggingface\.co")
_ROUTED: Final = re.compile(r"/hf-inference(/(?:models|pipeline)/.+)")
_SAGEMAKER: Final = re.compile(r"runtime\.sagemaker\..+\.amazonaws\.com(\.cn)?")
_INVOKED: Final = re.compile(r"(/endpoints/([^/]+)/)(invocations|invocations-response-stream)")
_MODEL: Final = re.compile(
    r"/models/(?P<model>.+?)(?:/pipeline/(?P<task>[\w-]+))?|/pipeline/(?P<of>[\w-]+)/(?P<name>.+)"
)
_TASKS: Final = {"feature-extraction": "embeddings", "text-generation": "text_completion"}
"""What Hugging Face calls what a model is asked to do; other tasks are operations by their own names."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """`/generate` and `/generate_stream`, and the bare paths of hosts that serve nothing else."""
    if method != "POST":
        return None
    if path in ("/generate", "/generate_stream"):
        place, streams = path.removesuffix("_stream"), path.endswith("_stream")
        return Claim(dialect=NAME, operation="text_completion", kind="model", path=place, streams=streams)
    if _SAGEMAKER.fullmatch(host) and (match := _INVOKED.fullmatch(path)):
        streams, place = match[3].endswith("stream"), match[1] + "invocations"
        return Claim(
            dialect=NAME, operation="text_completion", kind="model", path=place, model=match[2], streams=streams
        )
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


def asked(body: Json) -> Asked:
    """The model, where the body names it."""
    return Asked(model=some(members(body).get("model")))


def told(answer: Json) -> Told:
    """What was generated."""
    first = elements(answer)
    said = members(first[0]) if first else members(answer)
    completions = elements(said.get("completions"))
    completion = members(completions[0]) if completions else {}
    details = members(said.get("details"))
    return Told(
        model=some(said.get("model_version")),
        text=some(said.get("generated_text")) or some(completion.get("completion")),
        finish_reason=some(details.get("finish_reason")) or some(completion.get("finish_reason")),
        usage=Usage(
            input_tokens=count(said.get("num_tokens_prompt_total", details.get("input_length"))),
            output_tokens=count(said.get("num_tokens_generated", details.get("generated_tokens"))),
        ),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return Reading(content_type, Stream())


class Stream:
    """The tokens of one streamed text."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._whole: dict[str, Json] = {}

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Take one token; the last one brings the whole text and the details."""
        said = payload(data)
        token = members(said.get("token"))
        if token.get("special") is not True:
            self._tokens.append(text(token.get("text")))
        self._take_whole(said)

    @property
    def answer(self) -> Json:
        """The text so far."""
        joined: dict[str, Json] = {"generated_text": "".join(self._tokens)} if any(self._tokens) else {}
        return {**joined, **self._whole} or None

    @property
    def complete(self) -> bool:
        """Whether the whole text came."""
        return "generated_text" in self._whole and "error" not in self._whole

    def _take_whole(self, said: Mapping[str, Json]) -> None:
        names = ("generated_text", "details", "error", "error_type")
        self._whole |= {name: said[name] for name in names if said.get(name) is not None}
