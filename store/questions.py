"""Questions that programs ask people, and the answers: effects of a run, so that they are redacted, proven, exported and erased with it.

Each question and each answer is a batch of effects of the process `PERSON` (`calls.effects`). The first answer is valid. A run that
continues another one (its `parent`) gets the answers to what was asked in the other one, too.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from calls.effects.items import count_results, encode_items
from calls.effects.questions import ANSWERED, ASKED, PERSON, RECEIVED, PersonAnswer, PersonQuestion, read_questions
from calls.events import EffectBatch
from store.database.connection import Database
from store.database.rows import effect_batch
from store.ingest.batch_writer import BatchWriter

MOST_LISTED: Final = 10_000
"""Batches, the newest of a project, in which questions without an answer are looked for."""

MOST_ANCESTORS: Final = 100
"""Runs that one continues, directly or not, in which an answer is looked for."""


class QuestionUnknown(Exception):
    """The run asked no such question."""


class AlreadyAnswered(Exception):
    """The question has an answer, which does not change."""

    def __init__(self, question: PersonQuestion) -> None:
        self.question = question
        super().__init__(question.id)


def question_id(prompt: str, branch: str, number: int) -> str:
    """Return the id of the question that a program asks for the `number`-th time (from 0) with these words in a branch.

    It is the same in each execution of the program, and in one that was rewritten and asks the same.
    """
    return hashlib.sha256(json.dumps([prompt, branch, number]).encode()).hexdigest()[:16]


class Questions:
    """The questions of a project."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def list_run(self, run: str) -> list[PersonQuestion]:
        """Return the questions of a run, oldest first."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(OF_RUN, self._project, run, PERSON)
        return read_questions(effect_batch(row, run) for row in rows)

    async def list_waiting(self) -> list[PersonQuestion]:
        """Return the questions of all runs that wait for an answer, oldest first."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(NEWEST, self._project, MOST_LISTED)
        found = read_questions(effect_batch(row, row["run"]) for row in reversed(rows))
        return [question for question in found if question.answer is None]

    async def ask(self, question: PersonQuestion, writer: BatchWriter) -> PersonQuestion:
        """Store a question unless it was asked before. Return it with its answer, which may be that of a run that this one continues."""
        stored = _find(await self.list_run(question.run), question.id)
        batches = [] if stored else [_question_batch(question)]
        answer = stored.answer if stored else None
        if answer is None and (answer := await self._find_earlier_answer(question)):
            batches.append(_answer_batch(question, answer))
        if answer is not None and not (stored and stored.is_received):
            batches.append(_receipt_batch(question))
        if batches:
            await writer.write_batch((), effects=batches)
        return msgspec.structs.replace(stored or question, answer=answer)

    async def answer(self, run: str, name: str, answer: PersonAnswer, writer: BatchWriter) -> PersonQuestion:
        """Store the answer to a question. Raises QuestionUnknown and AlreadyAnswered."""
        question = _find(await self.list_run(run), name)
        if question is None:
            raise QuestionUnknown(name)
        if question.answer is None:
            await writer.write_batch((), effects=[_answer_batch(question, answer)])
            # Another one may have been faster: a batch that is there already is not replaced.
            question = _find(await self.list_run(run), name) or question
        if question.answer != answer:
            raise AlreadyAnswered(question)
        return question

    async def _find_earlier_answer(self, question: PersonQuestion) -> PersonAnswer | None:
        async with self._database.connection() as connection:
            rows = await connection.fetch(ANCESTORS, self._project, question.run, MOST_ANCESTORS)
        for row in rows:
            earlier = _find(await self.list_run(row["id"]), question.id)
            if earlier is not None and earlier.answer is not None:
                return earlier.answer
        return None


def _find(questions: Iterable[PersonQuestion], name: str) -> PersonQuestion | None:
    return next((question for question in questions if question.id == name), None)


def _question_batch(question: PersonQuestion) -> EffectBatch:
    arguments = {
        "question": question.id,
        "prompt": question.prompt,
        "branch": question.branch,
        "number": question.number,
    }
    item = {"kind": ASKED, "args": arguments, **({"at": question.asked_from} if question.asked_from else {})}
    return _batch(question, question.asked_at, 0, item)


def _answer_batch(question: PersonQuestion, answer: PersonAnswer) -> EffectBatch:
    arguments = {
        "question": question.id,
        "prompt": question.prompt,
        "branch": question.branch,
        "number": question.number,
        # As text, because it is larger than the integers of the format.
        "at": str(answer.at),
    }
    item = {"kind": ANSWERED, "args": arguments, "results": [answer.value], "by": answer.by}
    return _batch(question, max(question.asked_at, answer.at), 1, item)


def _receipt_batch(question: PersonQuestion) -> EffectBatch:
    item = {"kind": RECEIVED, "args": {"question": question.id}}
    return _batch(question, question.asked_at, 2, item)


def _batch(question: PersonQuestion, at: int, number: int, item: Mapping[str, Any]) -> EffectBatch:
    """Return a batch whose id depends on the question only, so that the first answer stays."""
    name = f"{question.run}\0{question.id}\0{item['kind']}".encode()
    identity = str(uuid.UUID(bytes=hashlib.sha256(name).digest()[:16], version=5))
    return EffectBatch(question.run, identity, at, PERSON, number, count_results([item]), encode_items([item]))


OF_RUN = """
SELECT id, observed_at, process, number, count, items FROM effects WHERE project = $1 AND run = $2 AND process = $3 ORDER BY observed_at, number
"""

NEWEST = """
SELECT run, id, observed_at, process, number, count, items FROM effects WHERE project = $1 AND process = 'person'
ORDER BY observed_at DESC, number DESC LIMIT $2
"""
"""With the process as text: an index of some rows serves no parameter."""

ANCESTORS = """
WITH RECURSIVE ancestors (id, parent, depth) AS (
    SELECT id, parent, 0 FROM runs WHERE project = $1 AND id = $2
    UNION ALL
    SELECT runs.id, runs.parent, depth + 1 FROM ancestors JOIN runs ON runs.project = $1 AND runs.id = ancestors.parent
    WHERE depth < $3
)
SELECT id FROM ancestors WHERE depth > 0 ORDER BY depth
"""
"""The runs that a run continues, nearest first."""
