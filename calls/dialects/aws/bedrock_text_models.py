"""The text models behind Bedrock's InvokeModel: the names that each has for text, stop reason and token counts.

A `TextModelFamily` builds the answer from its chunks, and summarizes it. Titan, Llama, Mistral and Cohere's Command stream; AI21's
Jurassic does not.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.pieces import PiecedObject, parse_payload
from calls.model import Json, Usage

type Fields = Mapping[str, Json]


class TextModelFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family of text models that share a shape."""

    piece: str
    """The member of a chunk that has the text."""
    build_answer: Callable[[Fields, str], Json]
    """Build the answer from the last values of all other members and the text."""
    summarize_answer: Callable[[Fields], AnswerSummary]


def _first_entry(answer: Fields, name: str) -> Fields:
    entries = as_array(answer.get(name))
    return as_object(entries[0]) if entries else {}


def _titan_answer(state: Fields, text: str) -> Json:
    result = {"tokenCount": state.get("totalOutputTextTokenCount"), "outputText": text}
    result["completionReason"] = state.get("completionReason")
    return {"inputTextTokenCount": state.get("inputTextTokenCount"), "results": [result]}


def _summarize_titan(answer: Fields) -> AnswerSummary:
    result = _first_entry(answer, "results")
    usage = Usage(
        input_tokens=as_count(answer.get("inputTextTokenCount")), output_tokens=as_count(result.get("tokenCount"))
    )
    return AnswerSummary(
        text=as_text_or_none(result.get("outputText")),
        finish_reason=as_text_or_none(result.get("completionReason")),
        usage=usage,
    )


def _llama_answer(state: Fields, text: str) -> Json:
    return {"generation": text, **state}


def _summarize_llama(answer: Fields) -> AnswerSummary:
    usage = Usage(
        input_tokens=as_count(answer.get("prompt_token_count")),
        output_tokens=as_count(answer.get("generation_token_count")),
    )
    return AnswerSummary(
        text=as_text_or_none(answer.get("generation")),
        finish_reason=as_text_or_none(answer.get("stop_reason")),
        usage=usage,
    )


def _mistral_answer(state: Fields, text: str) -> Json:
    return {"outputs": [{"text": text, **state}]}


def _summarize_mistral(answer: Fields) -> AnswerSummary:
    output = _first_entry(answer, "outputs")
    return AnswerSummary(
        text=as_text_or_none(output.get("text")), finish_reason=as_text_or_none(output.get("stop_reason"))
    )


def _command_answer(state: Fields, text: str) -> Json:
    members = {name: value for name, value in state.items() if name not in ("is_finished", "index")}
    return {"generations": [{**members, "text": text}]}


def _summarize_command(answer: Fields) -> AnswerSummary:
    generation = _first_entry(answer, "generations") or answer
    return AnswerSummary(
        text=as_text_or_none(generation.get("text")), finish_reason=as_text_or_none(generation.get("finish_reason"))
    )


def _summarize_jurassic(answer: Fields) -> AnswerSummary:
    completion = _first_entry(answer, "completions")
    data, reason = as_object(completion.get("data")), as_object(completion.get("finishReason"))
    return AnswerSummary(text=as_text_or_none(data.get("text")), finish_reason=as_text_or_none(reason.get("reason")))


def _jurassic_answer(state: Fields, text: str) -> Json:
    return {**state, "text": text}


TITAN: Final = TextModelFamily(piece="outputText", build_answer=_titan_answer, summarize_answer=_summarize_titan)
LLAMA: Final = TextModelFamily(piece="generation", build_answer=_llama_answer, summarize_answer=_summarize_llama)
MISTRAL: Final = TextModelFamily(piece="text", build_answer=_mistral_answer, summarize_answer=_summarize_mistral)
COMMAND: Final = TextModelFamily(piece="text", build_answer=_command_answer, summarize_answer=_summarize_command)
JURASSIC: Final = TextModelFamily(piece="text", build_answer=_jurassic_answer, summarize_answer=_summarize_jurassic)

ANSWERS: Final[Mapping[str, TextModelFamily]] = {
    "results": TITAN,
    "inputTextTokenCount": TITAN,
    "generation": LLAMA,
    "outputs": MISTRAL,
    "completions": JURASSIC,
    "generations": COMMAND,
    "text": COMMAND,
}
"""Families by a member that only their answers have."""

CHUNKS: Final[Mapping[str, TextModelFamily]] = {
    "outputText": TITAN,
    "generation": LLAMA,
    "outputs": MISTRAL,
    "is_finished": COMMAND,
}
"""Families by a member that only their chunks have."""


def compose_text(parts: AnswerParts) -> Json | None:
    """Make an answer of the family that the model belongs to; None for a model of another kind."""
    match parts.model:
        case model if "amazon.titan-t" in model:
            result: Json = {
                "tokenCount": parts.output_tokens,
                "outputText": parts.text,
                "completionReason": parts.finish_word("FINISH", "FINISH"),
            }
            return {"inputTextTokenCount": parts.input_tokens, "results": [result]}
        case model if "meta.llama" in model:
            counts: dict[str, Json] = {
                "prompt_token_count": parts.input_tokens,
                "generation_token_count": parts.output_tokens,
            }
            return {"generation": parts.text, **counts, "stop_reason": parts.finish_word("stop", "stop")}
        case model if "mistral.mi" in model:
            return {"outputs": [{"text": parts.text, "stop_reason": parts.finish_word("stop", "stop")}]}
        case model if "deepseek.r1" in model:
            return {"choices": [{"text": parts.text, "stop_reason": parts.finish_word("stop", "stop")}]}
        case model if "cohere.command" in model:
            generation: Json = {
                "id": parts.id,
                "text": parts.text,
                "finish_reason": parts.finish_word("COMPLETE", "COMPLETE"),
            }
            return {"id": parts.id, "generations": [generation], "prompt": as_text(parts.request.get("prompt"))}
        case model if "ai21.j2" in model:
            reason: Json = {"reason": parts.finish_word("endoftext", "endoftext")}
            return {"id": 1, "completions": [{"data": {"text": parts.text}, "finishReason": reason}]}
        case _:
            return None


def text_chunk(answer: Fields) -> Json | None:
    """The only chunk of a whole answer of such a model; None for one that is not streamed."""
    match answer:
        case {"results": [Mapping() as result]}:
            # What Bedrock itself adds, such as a guardrail's trace, is in the chunk too.
            added = {name: value for name, value in answer.items() if name.startswith("amazon-bedrock-")}
            return {
                **added,
                "outputText": result.get("outputText"),
                "index": 0,
                "totalOutputTextTokenCount": result.get("tokenCount"),
                "completionReason": result.get("completionReason"),
                "inputTextTokenCount": answer.get("inputTextTokenCount"),
            }
        case {"generation": _} | {"outputs": _}:
            return answer
        case {"choices": [Mapping() as choice, *_]} if "text" in choice:
            return answer
        case _:
            return None


class BedrockTextModelsStream:
    """The chunks of one streamed text."""

    def __init__(self, family: TextModelFamily) -> None:
        self._family = family
        self._state: dict[str, Json] = {}
        self._pieces: list[str] = []

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # a chunk has no name
        """Add one chunk. Null stands for a value that is not known yet."""
        chunk = parse_payload(data)
        for name, value in (_first_entry(chunk, "outputs") or chunk).items():
            if name == self._family.piece:
                self._pieces.append(as_text(value))
            elif value is not None or name not in self._state:
                self._state[name] = value

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return self._family.build_answer(self._state, "".join(self._pieces))

    @property
    def is_complete(self) -> bool:
        """Whether there is a finish reason."""
        return any(
            as_text_or_none(self._state.get(name)) for name in ("stop_reason", "finish_reason", "completionReason")
        )


class ChoicesStream:
    """The chunks of a text whose pieces are at the place of the whole text: DeepSeek's `text`, `message` of Mistral's newer models."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._choices: dict[int, PiecedObject] = {}

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # a chunk has no name
        """Add one chunk."""
        for name, value in parse_payload(data).items():
            if name != "choices":
                self._state[name] = value
                continue
            for place, choice in enumerate(map(as_object, as_array(value))):
                index = as_count(choice.get("index"))
                self._choices.setdefault(place if index is None else index, PiecedObject(_PIECES)).add(choice)

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return {**self._state, "choices": [self._choices[index].build() for index in sorted(self._choices)]}

    @property
    def is_complete(self) -> bool:
        """Whether each choice has a finish reason."""
        ends = [choice.build() for choice in self._choices.values()]
        return bool(ends) and all(
            as_text_or_none(end.get("stop_reason")) or as_text_or_none(end.get("finish_reason")) for end in ends
        )


_PIECES: Final = frozenset(("text", "content", "arguments", "reasoning_content"))
