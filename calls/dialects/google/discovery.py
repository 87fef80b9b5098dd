"""Google's Discovery Engine (Vertex AI Search, Agentspace): answers from documents, conversations, assistants, grounding checks.

A stream is an array of partial answers, whose texts and lists are pieces; the one with the state SUCCEEDED repeats the whole answer.
Its searches belong to `vectors`, its ranking to `rerank`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import streamed_by_path
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.framing import Framing, json_array, sse
from calls.model import Headers, Json

_HOST: Final = re.compile(r"(.+-)?discoveryengine\.googleapis\.com")
_PATH: Final = re.compile(
    r"(.*/(?:servingConfigs|conversations|groundingConfigs|assistants)/[^/:]+):(answer|streamAnswer|converse|check|assist|streamAssist)"
)
_PROJECT: Final = re.compile(r"/projects/[^/]+/")

_VERBS: Final = {
    "answer": ("answer", "retrieve_and_generate"),
    "streamAnswer": ("answer", "retrieve_and_generate"),
    "converse": ("converse", "retrieve_and_generate"),
    "check": ("check", "check_grounding"),
    "assist": ("assist", "invoke_agent"),
    "streamAssist": ("assist", "invoke_agent"),
}
"""The verb that counts in a key, and its operation."""

_STATES: Final = ("STATE_UNSPECIFIED", "IN_PROGRESS", "FAILED", "SUCCEEDED", "STREAMING")
"""The states by number: Google's SDK requests enums as numbers (`$alt=json;enum-encoding=int`)."""

_UNDONE: Final = frozenset(("STATE_UNSPECIFIED", "IN_PROGRESS", "STREAMING"))
_FRAMINGS: Final[tuple[Framing, ...]] = (sse, json_array)


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim Google's hosts for it. The project is not part of the key."""
    match = _PATH.fullmatch(path) if method == "POST" and _HOST.fullmatch(host) else None
    if match is None:
        return None
    verb, operation = _VERBS[match[2]]
    return Claim(
        operation=operation,
        kind="model",
        path=_PROJECT.sub("/projects/*/", f"{match[1]}:{verb}"),
        provider="gcp.gen_ai",
        streams=match[2].startswith("stream") if verb in ("answer", "assist") else None,
    )


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, where one is chosen."""
    request = as_object(body)
    answer_model = as_object(as_object(request.get("answerGenerationSpec")).get("modelSpec")).get("modelVersion")
    summary_model = as_object(as_object(request.get("summarySpec")).get("modelSpec")).get("version")
    assistant_model = as_object(request.get("generationSpec")).get("modelId")
    return RequestSummary(
        model=as_text_or_none(answer_model) or as_text_or_none(summary_model) or as_text_or_none(assistant_model)
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, and the documents that it cites."""
    fields = as_object(answer)
    partial = as_object(fields.get("answer"))
    summary = as_object(as_object(fields.get("reply")).get("summary"))
    text = (
        as_text_or_none(partial.get("answerText"))
        or as_text_or_none(summary.get("summaryText"))
        or _reply_text(partial)
    )
    found = partial.get("references") or fields.get("searchResults") or fields.get("citedChunks")
    return AnswerSummary(text=text or None, finish_reason=_answer_state(partial), results=tuple(as_array(found)))


def _reply_text(answer: Mapping[str, Json]) -> str:
    """An assistant's text, without its thoughts."""
    contents = [
        as_object(as_object(as_object(reply).get("groundedContent")).get("content"))
        for reply in as_array(answer.get("replies"))
    ]
    return "".join(as_text(content.get("text")) for content in contents if content.get("thought") is not True)


def _answer_state(answer: Mapping[str, Json]) -> str | None:
    number = as_count(answer.get("state"))
    return as_text_or_none(answer.get("state")) if number is None or number >= len(_STATES) else _STATES[number]


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, DiscoveryStream(), _FRAMINGS)


class DiscoveryStream:
    """The partial answers of one stream."""

    def __init__(self) -> None:
        self._other_members: dict[str, Json] = {}
        """The members beside the answer, such as the session."""

        self._answer: dict[str, Json] = {}
        self._texts: list[str] = []
        self._lists: dict[str, list[Json]] = {}
        self._error: Json = None

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # answers have no names
        """Add one partial answer, or an error under HTTP 200."""
        for name, value in parse_payload(data).items():
            if name == "error":
                self._error = value
            elif name == "answer":
                self._add_answer(as_object(value))
            else:
                self._other_members[name] = value

    def _add_answer(self, partial: Mapping[str, Json]) -> None:
        if _answer_state(partial) == "SUCCEEDED" and "answerText" in partial:
            # The last answer repeats the whole text, so it replaces the pieces.
            self._answer, self._texts, self._lists = {}, [], {}
        for name, value in partial.items():
            if name == "answerText":
                self._texts.append(as_text(value))
            elif isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
            else:
                self._answer[name] = value

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        text: dict[str, Json] = {"answerText": "".join(self._texts)} if self._texts else {}
        partial = {**self._answer, **text, **self._lists}
        whole: dict[str, Json] = {**({"answer": partial} if partial else {}), **self._other_members}
        return whole or None if self._error is None else {**whole, "error": self._error}

    @property
    def is_complete(self) -> bool:
        """Whether the answer has a final state, and no error."""
        state = _answer_state(self._answer)
        return self._error is None and state is not None and state not in _UNDONE


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make an answer, a reply of a conversation, or one of an assistant."""
    if parts.tool_calls or parts.text is None:
        return None
    state = parts.finish_word("SUCCEEDED", "SUCCEEDED")
    match parts.path.rpartition(":")[2]:
        case "answer":
            return {"answer": {"state": state, "answerText": parts.text}, "answerQueryToken": parts.id}
        case "converse":
            summary: Json = {"summaryText": parts.text}
            return {"reply": {"summary": summary}, "conversation": {"state": "IN_PROGRESS"}}
        case "assist":
            content: Json = {"role": "model", "text": parts.text}
            answer: Json = {"state": state, "replies": [{"groundedContent": {"content": content}}]}
            return {"answer": answer, "assistToken": parts.id}
        case _:
            return None


def _write_array(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    yield b"[" + dumps(answer) + b"\n]"


DIALECT: Final = Dialect(
    name="discovery",
    claim=claim,
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=streamed_by_path("array"),
    stream_writers={"array": _write_array},
    compose_answer=_compose_answer,
)
