"""Google's Code Assist, which the Gemini CLI uses: `generateContent` in an envelope.

It is a carrier: the envelope has the model and the project; the request and the response in it are Gemini's.
"""

import re
from typing import Final

from msgspec.structs import replace

from calls.codec.json import dumps
from calls.codec.lenient_json import as_object, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.google import gemini
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.framing import Framing, json_array, sse
from calls.model import Headers, Json

_PATH: Final = re.compile(r"((?:.*/)?v1internal:)(generateContent|streamGenerateContent|countTokens)")
_FRAMINGS: Final[tuple[Framing, ...]] = (sse, json_array)


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/v1internal:VERB` at any host."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    counts, streams = match[2] == "countTokens", match[2] == "streamGenerateContent"
    return Claim(
        operation="count_tokens" if counts else "generate_content",
        kind="model",
        path=match[1] + ("countTokens" if counts else "generateContent"),
        streams=streams,
    )


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the function results after its last message."""
    envelope = as_object(body)
    results = gemini.summarize_request(envelope.get("request")).tool_results
    return RequestSummary(model=as_text_or_none(envelope.get("model")), tool_results=results)


def summarize_answer(answer: Json) -> AnswerSummary:
    """Summarize the response in the envelope. An answer with a token count has no envelope."""
    envelope = as_object(answer)
    return gemini.summarize_answer(envelope.get("response", answer))


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, GeminiCodeStream(), _FRAMINGS)


class GeminiCodeStream:
    """The chunks of one streamed response, each in an envelope."""

    def __init__(self) -> None:
        self._inner = gemini.GeminiStream()
        self._state: dict[str, Json] = {}

    def add_message(self, event: str, data: str) -> None:
        """Add one chunk; an error has no envelope."""
        fields = parse_payload(data)
        self._state |= {name: value for name, value in fields.items() if name not in ("response", "error")}
        inner = (
            as_object(fields.get("response"))
            if "response" in fields
            else {name: fields[name] for name in ("error",) if name in fields}
        )
        self._inner.add_message(event, dumps(inner).decode())

    @property
    def answer(self) -> Json:
        """The envelope with the response so far."""
        inner = self._inner.answer
        if inner is None or ("error" in as_object(inner) and "candidates" not in as_object(inner)):
            return inner
        return {**self._state, "response": inner}

    @property
    def is_complete(self) -> bool:
        """Whether the response is complete."""
        return self._inner.is_complete


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a response in an envelope."""
    response = gemini.compose_answer(replace(parts, request=as_object(parts.request.get("request"))))
    return None if response is None else {"response": response, "traceId": parts.id}


DIALECT: Final = Dialect(
    name="gemini_code",
    claim=claim,
    services=(Service(provider="gcp.gemini", host_pattern=r"cloudcode-pa\.googleapis\.com", only_models=False),),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=gemini.requested_form,
    answer_paths=AnswerPaths(
        texts=("response/candidates/0/content/parts/*/text",),
        calls=("response/candidates/0/content/parts/*/functionCall",),
        arguments=("args",),
    ),
    error_body=gemini.error_body,
    stream_writers={"sse": gemini.write_events, "array": gemini.write_array},
    compose_answer=_compose_answer,
)
