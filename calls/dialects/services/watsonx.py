"""IBM watsonx: text generation, whole or as events. Its chats have OpenAI's shape (`openai.chat`)."""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json, Usage

NAME: Final = "watsonx"

_PATH: Final = re.compile(
    r"(/ml/v1[^/]*(?:/deployments/[^/]+)?(?:/generation)?/text)(/generation)?(_stream)?(/embeddings)?"
)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """IBM's `/ml/v1…/text/generation`, in either of its spellings; whether as a stream is not what is asked."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    return Claim(
        dialect=NAME,
        operation="embeddings" if match[4] else "text_completion",
        kind="model",
        path=match[1] + (match[2] or "") + (match[4] or ""),
        streams=match[3] is not None,
    )


def asked(body: Json) -> RequestSummary:
    """The model."""
    return RequestSummary(model=some(members(body).get("model_id")))


def told(answer: Json) -> AnswerSummary:
    """What the first result says."""
    said = members(answer)
    results = elements(said.get("results"))
    result = members(results[0]) if results else {}
    return AnswerSummary(
        model=some(said.get("model_id")),
        text=some(result.get("generated_text")),
        finish_reason=some(result.get("stop_reason")),
        usage=Usage(
            input_tokens=count(result.get("input_token_count", said.get("input_token_count"))),
            output_tokens=count(result.get("generated_token_count")),
        ),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, WatsonxStream())


class WatsonxStream:
    """The events of one streamed text."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._result: dict[str, Json] = {}
        self._texts: list[str] = []

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # every event is called `message`
        """Take one event: text goes on, counts are totals (the prompt's is told once), and the last reason counts."""
        said = payload(data)
        self._state |= {name: value for name, value in said.items() if name not in ("results", "created_at")}
        self._state.setdefault("created_at", said.get("created_at"))
        for result in map(members, elements(said.get("results"))[:1]):
            self._take_result(result)

    @property
    def answer(self) -> Json:
        """The answer so far."""
        if not self._result:
            return {name: value for name, value in self._state.items() if value is not None} or None
        return {**self._state, "results": [{"generated_text": "".join(self._texts), **self._result}]}

    @property
    def complete(self) -> bool:
        """Whether the text said why it ended."""
        return self._result.get("stop_reason") not in (None, "not_finished") and "errors" not in self._state

    def _take_result(self, result: Mapping[str, Json]) -> None:
        for name, value in result.items():
            if name == "generated_text":
                self._texts.append(text(value))
            elif name != "input_token_count" or value != 0 or name not in self._result:
                self._result[name] = value
