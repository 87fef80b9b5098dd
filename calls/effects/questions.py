"""The questions that a program asked people, among the effects of a run.

They are effects of the process `PERSON`: one item for a question, one for its answer. `docs/trace-format.md` describes their members.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from calls.events import EffectBatch

PERSON: Final = "person"
"""The process of questions and answers. Programs have processes whose names are numbers."""

ASKED: Final = "person.asked"
ANSWERED: Final = "person.answered"
RECEIVED: Final = "person.received"
"""The program got the answer: until then it waits, or has stopped."""

MOST_TEXT: Final = 10_000
"""Characters of a question, and of an answer."""


def recorded_questions(batches: Iterable[EffectBatch]) -> list[dict[str, Any]]:
    """Return the questions of a run in order, with `value`, `by`, `at` and `received` if they were answered.

    A question has its words (`prompt`), the `branch` of a workflow that asked (or an empty text) and the `number` of earlier ones with
    the same words there. `at` is in nanoseconds since 1970, as text. `received` is whether the program got the answer.
    """
    questions: dict[str, dict[str, Any]] = {}
    answers: dict[str, dict[str, Any]] = {}
    received: set[str] = set()
    for batch in sorted(batches, key=lambda one: (one.observed_at, one.number)):
        if batch.process != PERSON:
            continue
        for item in msgspec.json.decode(batch.items):
            arguments = item["args"]
            if item["kind"] == ASKED:
                questions[arguments["question"]] = {name: arguments[name] for name in ("prompt", "branch", "number")}
            elif item["kind"] == ANSWERED:
                answers[arguments["question"]] = {
                    "value": item["results"][0],
                    "by": item.get("by", ""),
                    "at": arguments["at"],
                }
            elif item["kind"] == RECEIVED:
                received.add(arguments["question"])
    for name, answer in answers.items():
        answer["received"] = name in received
    return [{**question, **answers.get(name, {})} for name, question in questions.items()]
