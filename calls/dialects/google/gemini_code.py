"""Google's Code Assist, which the Gemini CLI uses: `generateContent` in an envelope.

It is a carrier: the envelope says which model and whose request it is; what it holds is Gemini's, and so is what the answer's holds.
"""

import re
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import members, some
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.google import gemini
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.framing import Framing, json_array, sse
from calls.model import Headers, Json

NAME: Final = "gemini_code"

_PATH: Final = re.compile(r"((?:.*/)?v1internal:)(generateContent|streamGenerateContent|countTokens)")
_FRAMINGS: Final[tuple[Framing, ...]] = (sse, json_array)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/v1internal:VERB`."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    counts, streams = match[2] == "countTokens", match[2] == "streamGenerateContent"
    return Claim(
        dialect=NAME,
        operation="count_tokens" if counts else "generate_content",
        kind="model",
        path=match[1] + ("countTokens" if counts else "generateContent"),
        streams=streams,
    )


def asked(body: Json) -> RequestSummary:
    """The model, and the answers of functions that follow its last word."""
    envelope = members(body)
    results = gemini.asked(envelope.get("request")).tool_results
    return RequestSummary(model=some(envelope.get("model")), tool_results=results)


def told(answer: Json) -> AnswerSummary:
    """What the response in the envelope says; a count of tokens has none."""
    envelope = members(answer)
    return gemini.told(envelope.get("response", answer))


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, GeminiCodeStream(), _FRAMINGS)


class GeminiCodeStream:
    """The chunks of one streamed response, each in an envelope."""

    def __init__(self) -> None:
        self._inner = gemini.GeminiStream()
        self._state: dict[str, Json] = {}

    def take(self, event: str, data: str) -> None:
        """Take one chunk; an error comes bare."""
        said = payload(data)
        self._state |= {name: value for name, value in said.items() if name not in ("response", "error")}
        inner = (
            members(said.get("response"))
            if "response" in said
            else {name: said[name] for name in ("error",) if name in said}
        )
        self._inner.take(event, dumps(inner).decode())

    @property
    def answer(self) -> Json:
        """The envelope with the response so far."""
        inner = self._inner.answer
        if inner is None or ("error" in members(inner) and "candidates" not in members(inner)):
            return inner
        return {**self._state, "response": inner}

    @property
    def complete(self) -> bool:
        """Whether the response is whole."""
        return self._inner.complete
