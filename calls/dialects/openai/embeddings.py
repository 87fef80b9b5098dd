"""OpenAI Embeddings: `POST …/embeddings`, by OpenAI, Azure, Mistral, Voyage, vLLM, Ollama and others.

OpenAI's SDKs ask for the vectors as base64 and never say so. They are the same vectors: floats of 32 bits, the least byte
first. Here an answer has them as numbers, however they were sent.
"""

import base64
import binascii
import re
from array import array
from collections.abc import Callable
from math import isfinite
from sys import byteorder
from typing import Final

from calls.codec.lenient_json import count, elements, members, some
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.model import Headers, Json, Usage

NAME: Final = "openai_embeddings"

_PATH: Final = re.compile(
    r"(?:.*/)?(?:v\d+|openai|inference|models|serving-endpoints|(?:deployments|engines)/(?P<model>[^/]+))/+(?:multimodal|contextualized|images/)?embeddings/?|/(?:images/)?embeddings/?"
)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/v1/embeddings`."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    return Claim(dialect=NAME, operation="embeddings", kind="model", model=match["model"]) if match else None


def asked(body: Json) -> RequestSummary:
    """The model."""
    return RequestSummary(model=some(members(body).get("model")))


def told(answer: Json) -> AnswerSummary:
    """Vectors say nothing; what they cost is said."""
    embeddings = members(answer)
    usage = members(embeddings.get("usage"))
    prompt = count(usage.get("prompt_tokens"))
    # Voyage counts only the whole.
    return AnswerSummary(
        model=some(embeddings.get("model")),
        usage=Usage(
            input_tokens=count(usage.get("total_tokens")) if prompt is None else prompt,
            output_tokens=count(usage.get("completion_tokens")),
        ),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a list of embeddings, which is never a stream."""
    return _Vectors(content_type)


class _Vectors(AccumulatorAssembly):
    """A body of embeddings, with their vectors as numbers."""

    def __init__(self, content_type: str) -> None:
        super().__init__(content_type, _NoStream(), framings=())

    def finish(self) -> None:
        """No more bytes will come."""
        super().finish()
        self._answer = as_numbers(self._answer)


class _NoStream:
    """What is never fed."""

    answer: Final = None
    complete: Final = False

    def take(self, event: str, data: str) -> None:
        """Nothing comes here."""


def as_numbers(answer: Json) -> Json:
    """Embeddings with every vector as numbers."""
    return _each_vector(answer, _numbers)


def as_base64(answer: Json) -> Json:
    """Embeddings with every vector as base64, the way the SDKs ask for them."""
    return _each_vector(answer, _base64)


def _each_vector(answer: Json, form: Callable[[Json], Json]) -> Json:
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        return answer
    entries = [
        {**entry, "embedding": form(entry["embedding"])} if isinstance(entry, dict) and "embedding" in entry else entry
        for entry in elements(answer["data"])
    ]
    return {**answer, "data": entries}


def _numbers(vector: Json) -> Json:
    """Numbers; what is not a text of floats stays as it came."""
    if not isinstance(vector, str):
        return vector
    try:
        floats = array("f", base64.b64decode(vector, validate=True))
    except (binascii.Error, ValueError):
        return vector
    numbers = _little(floats).tolist()
    return numbers if all(map(isfinite, numbers)) else vector


def _base64(vector: Json) -> Json:
    """Base64; what is not a list of numbers that 32 bits hold stays as it came."""
    try:
        floats = array("f", map(float, elements(vector)))  # type: ignore[arg-type] # what is no number raises
    except (TypeError, ValueError, OverflowError):
        return vector
    return base64.b64encode(_little(floats).tobytes()).decode() if isinstance(vector, list) else vector


def _little(floats: "array[float]") -> "array[float]":
    """The same, where this machine has the greatest byte first."""
    if byteorder == "big":
        floats.byteswap()
    return floats
