"""Google's Discovery Engine (Vertex AI Search, Agentspace): answers from documents, conversations, assistants, grounding checks.

A stream is an array of answers so far, whose texts and lists are pieces; the one that says that it succeeded is the whole answer again.
Its searches are with `vectors`, its ranking with `rerank`.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.framing import Framing, json_array, sse
from calls.model import Headers, Json

NAME: Final = "discovery"

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
"""A verb as it counts in a key, and what it asks for."""

_STATES: Final = ("STATE_UNSPECIFIED", "IN_PROGRESS", "FAILED", "SUCCEEDED", "STREAMING")
"""Google's SDK asks for enums as numbers (`$alt=json;enum-encoding=int`)."""

_UNDONE: Final = frozenset(("STATE_UNSPECIFIED", "IN_PROGRESS", "STREAMING"))
_FRAMINGS: Final[tuple[Framing, ...]] = (sse, json_array)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Google's hosts for it; whose project pays is not what is asked."""
    match = _PATH.fullmatch(path) if method == "POST" and _HOST.fullmatch(host) else None
    if match is None:
        return None
    verb, operation = _VERBS[match[2]]
    return Claim(
        dialect=NAME,
        operation=operation,
        kind="model",
        path=_PROJECT.sub("/projects/*/", f"{match[1]}:{verb}"),
        provider="gcp.gen_ai",
        streams=match[2].startswith("stream") if verb in ("answer", "assist") else None,
    )


def asked(body: Json) -> RequestSummary:
    """The model, where it is chosen."""
    request = members(body)
    answered = members(members(request.get("answerGenerationSpec")).get("modelSpec")).get("modelVersion")
    summed = members(members(request.get("summarySpec")).get("modelSpec")).get("version")
    assisted = members(request.get("generationSpec")).get("modelId")
    return RequestSummary(model=some(answered) or some(summed) or some(assisted))


def told(answer: Json) -> AnswerSummary:
    """What it says, and which documents it rests on."""
    said = members(answer)
    one = members(said.get("answer"))
    summary = members(members(said.get("reply")).get("summary"))
    words = some(one.get("answerText")) or some(summary.get("summaryText")) or _replies(one)
    found = one.get("references") or said.get("searchResults") or said.get("citedChunks")
    return AnswerSummary(text=words or None, finish_reason=_state(one), results=tuple(elements(found)))


def _replies(one: Mapping[str, Json]) -> str:
    """What an assistant says, without its thoughts."""
    contents = [
        members(members(members(reply).get("groundedContent")).get("content")) for reply in elements(one.get("replies"))
    ]
    return "".join(text(content.get("text")) for content in contents if content.get("thought") is not True)


def _state(one: Mapping[str, Json]) -> str | None:
    number = count(one.get("state"))
    return some(one.get("state")) if number is None or number >= len(_STATES) else _STATES[number]


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, whole or so far."""
    return AccumulatorAssembly(content_type, DiscoveryStream(), _FRAMINGS)


class DiscoveryStream:
    """The answers so far of one stream."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._answer: dict[str, Json] = {}
        self._texts: list[str] = []
        self._lists: dict[str, list[Json]] = {}
        self._error: Json = None

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # answers have no names
        """Take one answer so far, or an error under HTTP 200."""
        for name, value in payload(data).items():
            if name == "error":
                self._error = value
            elif name == "answer":
                self._take(members(value))
            else:
                self._state[name] = value

    def _take(self, one: Mapping[str, Json]) -> None:
        if _state(one) == "SUCCEEDED" and "answerText" in one:
            self._answer, self._texts, self._lists = {}, [], {}
        for name, value in one.items():
            if name == "answerText":
                self._texts.append(text(value))
            elif isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
            else:
                self._answer[name] = value

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        words: dict[str, Json] = {"answerText": "".join(self._texts)} if self._texts else {}
        one = {**self._answer, **words, **self._lists}
        whole: dict[str, Json] = {**({"answer": one} if one else {}), **self._state}
        return whole or None if self._error is None else {**whole, "error": self._error}

    @property
    def complete(self) -> bool:
        """Whether it said what became of the answer, and no error."""
        state = _state(self._answer)
        return self._error is None and state is not None and state not in _UNDONE
