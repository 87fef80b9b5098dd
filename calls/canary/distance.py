"""How far an answer is from reference answers: by embeddings, or by a judge that is asked whether both mean the same.

A distance is from 0, the same, to 1. An answer with the words of a reference has distance 0, and nobody is asked.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Final

from calls.codec.json import dumps
from calls.judgement.prompt import JudgeSettings, absolute_questions
from calls.judgement.rubric import Criterion
from calls.judgement.verdict import read_vote
from calls.model import Json

FARTHEST: Final = 0.5
"""The cosine distance from which two texts count as wholly different: in most models, texts about different things."""

SAME_MEANING: Final = Criterion(
    name="same meaning",
    question=(
        "Do the reference answer and the new answer mean the same, so that whoever asked would learn and do the same?"
        " Other words, another order and another tone do not count; another fact, number, name, decision or tool does."
    ),
)

_JUDGED: Final[Mapping[str, float]] = {"pass": 0.0, "cannot tell": 0.5, "fail": 1.0}


class InvalidAnswer(ValueError):
    """What was asked for a distance did not answer with one. The message says what it said."""


def answer_words(text: str | None, tools: Sequence[tuple[str, Json]]) -> str:
    """The content of an answer as one text: what it says, and the tools that it requests with their arguments."""
    return "\n".join(
        [*([text] if text else []), *(f"{name}({dumps(arguments).decode()})" for name, arguments in tools)]
    )


def read_vectors(answer: Json, count: int) -> list[list[float]]:
    """Read the vectors of an OpenAI-compatible answer to a request with so many texts. Raises InvalidAnswer."""
    try:
        data: Any = answer["data"]  # type: ignore[index, call-overload] # whatever is wrong with it is told below
        ordered: Any = sorted(data, key=lambda one: one["index"])
        vectors = [[float(number) for number in one["embedding"]] for one in ordered]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidAnswer("the answer is not a list of embeddings") from error
    if len(vectors) != count or not all(vectors) or len({len(one) for one in vectors}) != 1:
        raise InvalidAnswer(f"the answer has {len(vectors)} embeddings for {count} texts, or of different lengths")
    return vectors


def embedding_distance(vector: Sequence[float], references: Sequence[Sequence[float]]) -> float:
    """The distance from the nearest reference, as a part of `FARTHEST`. Raises InvalidAnswer for vectors of other lengths."""
    return min(min(1.0, max(0.0, 1.0 - _cosine(vector, one)) / FARTHEST) for one in references)


def judge_body(model: str, reference: str, words: str) -> dict[str, Any]:
    """The request that asks a judge whether an answer means the same as the reference answer."""
    [question] = absolute_questions("", _transcript(reference, words), [SAME_MEANING], JudgeSettings(model=model))
    return question.body


def judged_distance(answer: Json, reference: str, words: str) -> float:
    """The distance that a judge's answer says: 0, 1, or a half where it cannot tell. Raises InvalidAnswer."""
    try:
        message = answer["choices"][0]["message"]  # type: ignore[index, call-overload] # the branch below reports whatever is wrong
        text = message.get("content") or message.get("refusal")  # type: ignore[union-attr]
    except (LookupError, TypeError, AttributeError) as error:
        raise InvalidAnswer("the answer is not a chat completion") from error
    vote = read_vote(text if isinstance(text, str) else None, _transcript(reference, words))
    if vote.word is None:
        # A judge that gives no verdict is itself at fault: the answer that it was asked about has no distance.
        raise InvalidAnswer(vote.reason)
    return _JUDGED[vote.verdict]


def _transcript(reference: str, words: str) -> list[str]:
    return [dumps({"reference answer": reference}).decode(), dumps({"new answer": words}).decode()]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        raise InvalidAnswer(f"the embeddings have {len(one)} and {len(other)} numbers")
    length = sqrt(sum(x * x for x in one) * sum(x * x for x in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / length if length else 0.0
