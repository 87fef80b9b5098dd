"""The text models behind Bedrock's InvokeModel: the names that each has for text, stop reason and token counts.

A `Family` says how its chunks become its whole answer, and what that says. Titan, Llama, Mistral and Cohere's Command stream; AI21's
Jurassic answers whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary
from calls.dialects.parts.pieces import PiecedObject, payload
from calls.model import Json, Usage

type Fields = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One shape of text model."""

    piece: str
    """The member of a chunk that holds text."""
    whole: Callable[[Fields, str], Json]
    """The answer, from the last values of all other members and the text."""
    told: Callable[[Fields], AnswerSummary]


def _first(answer: Fields, name: str) -> Fields:
    entries = elements(answer.get(name))
    return members(entries[0]) if entries else {}


def _titan(state: Fields, said: str) -> Json:
    result = {"tokenCount": state.get("totalOutputTextTokenCount"), "outputText": said}
    result["completionReason"] = state.get("completionReason")
    return {"inputTextTokenCount": state.get("inputTextTokenCount"), "results": [result]}


def _titan_told(answer: Fields) -> AnswerSummary:
    result = _first(answer, "results")
    usage = Usage(input_tokens=count(answer.get("inputTextTokenCount")), output_tokens=count(result.get("tokenCount")))
    return AnswerSummary(
        text=some(result.get("outputText")), finish_reason=some(result.get("completionReason")), usage=usage
    )


def _llama(state: Fields, said: str) -> Json:
    return {"generation": said, **state}


def _llama_told(answer: Fields) -> AnswerSummary:
    usage = Usage(
        input_tokens=count(answer.get("prompt_token_count")),
        output_tokens=count(answer.get("generation_token_count")),
    )
    return AnswerSummary(
        text=some(answer.get("generation")), finish_reason=some(answer.get("stop_reason")), usage=usage
    )


def _mistral(state: Fields, said: str) -> Json:
    return {"outputs": [{"text": said, **state}]}


def _mistral_told(answer: Fields) -> AnswerSummary:
    output = _first(answer, "outputs")
    return AnswerSummary(text=some(output.get("text")), finish_reason=some(output.get("stop_reason")))


def _command(state: Fields, said: str) -> Json:
    kept = {name: value for name, value in state.items() if name not in ("is_finished", "index")}
    return {"generations": [{**kept, "text": said}]}


def _command_told(answer: Fields) -> AnswerSummary:
    generation = _first(answer, "generations") or answer
    return AnswerSummary(text=some(generation.get("text")), finish_reason=some(generation.get("finish_reason")))


def _jurassic_told(answer: Fields) -> AnswerSummary:
    completion = _first(answer, "completions")
    said, reason = members(completion.get("data")), members(completion.get("finishReason"))
    return AnswerSummary(text=some(said.get("text")), finish_reason=some(reason.get("reason")))


def _unstreamed(state: Fields, said: str) -> Json:
    return {**state, "text": said}


TITAN: Final = Family(piece="outputText", whole=_titan, told=_titan_told)
LLAMA: Final = Family(piece="generation", whole=_llama, told=_llama_told)
MISTRAL: Final = Family(piece="text", whole=_mistral, told=_mistral_told)
COMMAND: Final = Family(piece="text", whole=_command, told=_command_told)
JURASSIC: Final = Family(piece="text", whole=_unstreamed, told=_jurassic_told)

ANSWERS: Final[Mapping[str, Family]] = {
    "results": TITAN,
    "inputTextTokenCount": TITAN,
    "generation": LLAMA,
    "outputs": MISTRAL,
    "completions": JURASSIC,
    "generations": COMMAND,
    "text": COMMAND,
}
"""Families by a member that only their answers have."""

CHUNKS: Final[Mapping[str, Family]] = {
    "outputText": TITAN,
    "generation": LLAMA,
    "outputs": MISTRAL,
    "is_finished": COMMAND,
}
"""Families by a member that only their chunks have."""


class BedrockTextModelsStream:
    """The chunks of one streamed text."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._state: dict[str, Json] = {}
        self._pieces: list[str] = []

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # a chunk has no name
        """Take one chunk. What is null in it is not yet known."""
        chunk = payload(data)
        for name, value in (_first(chunk, "outputs") or chunk).items():
            if name == self._family.piece:
                self._pieces.append(text(value))
            elif value is not None or name not in self._state:
                self._state[name] = value

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return self._family.whole(self._state, "".join(self._pieces))

    @property
    def complete(self) -> bool:
        """Whether it said why it ended."""
        return any(some(self._state.get(name)) for name in ("stop_reason", "finish_reason", "completionReason"))


class Choices:
    """The chunks of a text whose pieces stand where the whole would: DeepSeek's `text`, the `message` of Mistral's newer models."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._choices: dict[int, PiecedObject] = {}

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # a chunk has no name
        """Take one chunk."""
        for name, value in payload(data).items():
            if name != "choices":
                self._state[name] = value
                continue
            for place, choice in enumerate(map(members, elements(value))):
                index = count(choice.get("index"))
                self._choices.setdefault(place if index is None else index, PiecedObject(_PIECES)).take(choice)

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return {**self._state, "choices": [self._choices[index].whole() for index in sorted(self._choices)]}

    @property
    def complete(self) -> bool:
        """Whether each said why it ended."""
        ends = [choice.whole() for choice in self._choices.values()]
        return bool(ends) and all(some(end.get("stop_reason")) or some(end.get("finish_reason")) for end in ends)


_PIECES: Final = frozenset(("text", "content", "arguments", "reasoning_content"))
