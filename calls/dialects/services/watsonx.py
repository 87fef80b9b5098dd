"""IBM watsonx: text generation, whole or as events. Its chats have OpenAI's shape (`openai.chat`)."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, Usage

_PATH: Final = re.compile(
    r"(/ml/v1[^/]*(?:/deployments/[^/]+)?(?:/generation)?/text)(/generation)?(_stream)?(/embeddings)?"
)


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim IBM's `/ml/v1…/text/generation` in both spellings. Streaming is not part of the key."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    return Claim(
        operation="embeddings" if match[4] else "text_completion",
        kind="model",
        path=match[1] + (match[2] or "") + (match[4] or ""),
        streams=match[3] is not None,
    )


def summarize_request(body: Json) -> RequestSummary:
    """Find the model."""
    return RequestSummary(model=as_text_or_none(as_object(body).get("model_id")))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text of the first result."""
    fields = as_object(answer)
    results = as_array(fields.get("results"))
    result = as_object(results[0]) if results else {}
    return AnswerSummary(
        model=as_text_or_none(fields.get("model_id")),
        text=as_text_or_none(result.get("generated_text")),
        finish_reason=as_text_or_none(result.get("stop_reason")),
        usage=Usage(
            input_tokens=as_count(result.get("input_token_count", fields.get("input_token_count"))),
            output_tokens=as_count(result.get("generated_token_count")),
        ),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, WatsonxStream())


class WatsonxStream:
    """The events of one streamed text."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._result: dict[str, Json] = {}
        self._texts: list[str] = []

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # every event is called `message`
        """Add one event: texts are joined, counts are totals (the prompt's is sent once), and the last reason counts."""
        fields = parse_payload(data)
        self._state |= {name: value for name, value in fields.items() if name not in ("results", "created_at")}
        self._state.setdefault("created_at", fields.get("created_at"))
        for result in map(as_object, as_array(fields.get("results"))[:1]):
            self._add_result(result)

    @property
    def answer(self) -> Json:
        """The answer so far."""
        if not self._result:
            return {name: value for name, value in self._state.items() if value is not None} or None
        return {**self._state, "results": [{"generated_text": "".join(self._texts), **self._result}]}

    @property
    def is_complete(self) -> bool:
        """Whether the text has a finish reason."""
        return self._result.get("stop_reason") not in (None, "not_finished") and "errors" not in self._state

    def _add_result(self, result: Mapping[str, Json]) -> None:
        for name, value in result.items():
            if name == "generated_text":
                self._texts.append(as_text(value))
            elif name != "input_token_count" or value != 0 or name not in self._result:
                self._result[name] = value


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a text. It has no tool calls."""
    if parts.operation != "text_completion" or parts.tool_calls:
        return None
    result: Json = {
        "generated_text": parts.text,
        "generated_token_count": parts.output_tokens,
        "input_token_count": parts.input_tokens,
        "stop_reason": parts.finish_word("eos_token", "eos_token"),
    }
    return {"model_id": parts.model, "created_at": parts.created_at, "results": [result]}


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make embeddings."""
    vectors = parts.vectors if parts.operation == "embeddings" else None
    if vectors is None:
        return None
    head: dict[str, Json] = {"model_id": parts.model, "created_at": parts.created_at}
    return {**head, "results": [{"embedding": one} for one in vectors], "input_token_count": parts.input_tokens}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write one event, which has the whole text."""
    yield b"id: 1\n" + sse_message("message", dict(answer))


DIALECT: Final = Dialect(
    name="watsonx",
    claim=claim,
    services=(Service(provider="ibm.watsonx.ai", host_pattern=r".+\.ml\.cloud\.ibm\.com", only_models=False),),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
    compose_results=_compose_results,
)
