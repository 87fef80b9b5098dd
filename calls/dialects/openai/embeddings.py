"""OpenAI Embeddings: `POST …/embeddings`, by OpenAI, Azure, Mistral, Voyage, vLLM, Ollama and others.

OpenAI's SDKs request vectors as base64 unless told otherwise: the same floats of 32 bits, little-endian. An answer has them as
numbers here, however they were sent.
"""

import base64
import binascii
import re
from array import array
from collections.abc import Callable
from math import isfinite
from sys import byteorder
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import never_streamed
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.model import Headers, Json, Usage

_PATH: Final = re.compile(
    r"(?:.*/)?(?:v\d+|openai|inference|models|serving-endpoints|(?:deployments|engines)/(?P<model>[^/]+))/+(?:multimodal|contextualized|images/)?embeddings/?|/(?:images/)?embeddings/?"
)


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/v1/embeddings` at any host."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    return Claim(operation="embeddings", kind="model", model=match["model"]) if match else None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model."""
    return RequestSummary(model=as_text_or_none(as_object(body).get("model")))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the model and the usage: vectors have no text."""
    embeddings = as_object(answer)
    usage = as_object(embeddings.get("usage"))
    prompt = as_count(usage.get("prompt_tokens"))
    # Voyage has only the total.
    return AnswerSummary(
        model=as_text_or_none(embeddings.get("model")),
        usage=Usage(
            input_tokens=as_count(usage.get("total_tokens")) if prompt is None else prompt,
            output_tokens=as_count(usage.get("completion_tokens")),
        ),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a list of embeddings, which is never a stream."""
    return _EmbeddingsAssembly(content_type)


class _EmbeddingsAssembly(AccumulatorAssembly):
    """A body of embeddings, with their vectors as numbers."""

    def __init__(self, content_type: str) -> None:
        super().__init__(content_type, _NoStream(), framings=())

    def finish(self) -> None:
        """Note that the body has ended."""
        super().finish()
        self._answer = as_numbers(self._answer)


class _NoStream:
    """An accumulator that gets no messages."""

    answer: Final = None
    is_complete: Final = False

    def add_message(self, event: str, data: str) -> None:
        """Do nothing."""


def as_numbers(answer: Json) -> Json:
    """Convert every vector to numbers."""
    return _map_vectors(answer, _decode_vector)


def as_base64(answer: Json) -> Json:
    """Convert every vector to base64, as the SDKs request it."""
    return _map_vectors(answer, _encode_vector)


def respell_vectors(answer: Json, then: Json, now: Json) -> Json | None:
    """Convert vectors to the encoding that the request `now` has; None where the request `then` has the same one."""
    if _wants_base64(then) == _wants_base64(now):
        return None
    return as_base64(answer) if _wants_base64(now) else as_numbers(answer)


def _wants_base64(request: Json) -> bool:
    return as_object(request).get("encoding_format") == "base64"


def _map_vectors(answer: Json, form: Callable[[Json], Json]) -> Json:
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        return answer
    entries = [
        {**entry, "embedding": form(entry["embedding"])} if isinstance(entry, dict) and "embedding" in entry else entry
        for entry in as_array(answer["data"])
    ]
    return {**answer, "data": entries}


def _decode_vector(vector: Json) -> Json:
    """Decode base64; return anything but base64 of floats unchanged."""
    if not isinstance(vector, str):
        return vector
    try:
        floats = array("f", base64.b64decode(vector, validate=True))
    except (binascii.Error, ValueError):
        return vector
    numbers = _little_endian(floats).tolist()
    return numbers if all(map(isfinite, numbers)) else vector


def _encode_vector(vector: Json) -> Json:
    """Encode as base64; return anything but a list of numbers of 32 bits unchanged."""
    try:
        floats = array("f", map(float, as_array(vector)))  # type: ignore[arg-type] # what is no number raises
    except (TypeError, ValueError, OverflowError):
        return vector
    return base64.b64encode(_little_endian(floats).tobytes()).decode() if isinstance(vector, list) else vector


def _little_endian(floats: "array[float]") -> "array[float]":
    """Swap the bytes on a big-endian machine."""
    if byteorder == "big":
        floats.byteswap()
    return floats


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make a list of embeddings, in the encoding that the request wants."""
    vectors = parts.vectors
    if vectors is None:
        return None
    entries: list[Json] = [
        {"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(vectors)
    ]
    usage: Json = {"prompt_tokens": parts.input_tokens, "total_tokens": parts.input_tokens}
    answer: Json = {"object": "list", "data": entries, "model": parts.model, "usage": usage}
    return as_base64(answer) if _wants_base64(parts.request) else answer


DIALECT: Final = Dialect(
    name="openai_embeddings",
    claim=claim,
    services=(
        Service(provider="voyage", hosts=("api.voyageai.com",)),
        Service(provider="jina", hosts=("api.jina.ai",)),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=never_streamed,
    respell_answer=respell_vectors,
    error_body=openai_error,
    compose_results=_compose_results,
)
