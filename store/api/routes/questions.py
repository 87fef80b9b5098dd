"""What programs report themselves: questions to people, which wait for answers, and effects."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calls.effects.items import InvalidEffects, Item, count_results, encode_items, read_items
from calls.effects.questions import MOST_TEXT, PERSON, PersonAnswer, PersonQuestion
from calls.events import EffectBatch
from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.parameters import RUN_ID_PATTERN, RunId
from store.api.problems import Problem, not_found
from store.api.routes.runs import require_run
from store.database.rows import storable_text
from store.query.rest_shapes import Shape, rfc3339
from store.questions import AlreadyAnswered, Questions, QuestionUnknown, question_id

router = APIRouter(tags=["questions"], route_class=DeferredRoute)

type LongText = Annotated[str, StringConstraints(max_length=MOST_TEXT)]
type QuestionName = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]

MOST_BATCHES = 1_000_000
MOST_OF_RUN = 1000
"""Questions of a run."""


class NewQuestion(BaseModel):
    """What a program asks."""

    model_config = ConfigDict(extra="forbid")
    prompt: LongText
    asked_from: Annotated[str, StringConstraints(max_length=500)] = ""
    """File and line of the program, as `agent.py:12`."""

    branch: Annotated[str, StringConstraints(max_length=500)] = ""
    """The branch of a workflow that asks."""

    number: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """How often the program has asked the same before, in this branch."""


class NewEffects(BaseModel):
    """A batch of effects (docs/trace-format.md)."""

    model_config = ConfigDict(extra="forbid")
    process: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
    """Who reports: the name of a framework. Names that Playhead uses itself are refused."""

    number: Annotated[int, Field(ge=0, le=MOST_BATCHES)]
    """The place of this batch among those of the process."""

    items: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]


class NewAnswer(BaseModel):
    """What a person answers."""

    model_config = ConfigDict(extra="forbid")
    value: LongText
    question: QuestionName | None = None
    """Which question, if several wait."""

    by: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    """Who answers."""


@router.get("/waiting", summary="Questions that wait for a person's answer, oldest first")
async def list_waiting(
    deps: TheDeps,
    run: Annotated[str | None, Query(pattern=RUN_ID_PATTERN, description="only those of this run")] = None,
) -> Response:
    """Without the scope `bodies:read`, `prompt` is null."""
    found = await Questions(deps.database, deps.project).list_waiting()
    items = [_shape(deps, one) for one in found if run in (None, one.run)]
    return JsonResponse({"items": items, "next": None})


@router.post("/runs/{run}/effects", summary="Add effects that a program reports", status_code=201)
async def add_effects(deps: TheDeps, run: RunId, new: NewEffects) -> Response:
    """For bridges to frameworks (`playhead.bridges` sends their steps). Secrets are replaced in them."""
    if new.process in (PERSON, "command"):
        raise Problem(
            422, "invalid_effects", f"the process {new.process} is one of Playhead's own: choose another name"
        )
    try:
        items = await asyncio.to_thread(_checked_items, deps, new.items)
    except InvalidEffects as error:
        raise Problem(422, "invalid_effects", str(error)) from None
    batch = EffectBatch(
        run, str(uuid.uuid4()), deps.now(), new.process, new.number, count_results(items), encode_items(items)
    )
    await deps.writer.write_batch((), effects=[batch])
    return JsonResponse({"count": batch.count}, 201)


def _checked_items(deps: Deps, items: Sequence[Item]) -> list[Item]:
    return read_items(msgspec.json.encode([_redact(deps, item) for item in items]))


def _redact(deps: Deps, value: Any) -> Any:
    match value:
        case str():
            return storable_text(deps.clean(value))
        case list():
            return [_redact(deps, one) for one in value]
        case dict():
            return {name: _redact(deps, one) for name, one in value.items()}
    return value


@router.post("/runs/{run}/questions", summary="Ask a person, or get the answer", status_code=201)
async def ask(deps: TheDeps, run: RunId, new_question: NewQuestion) -> Response:
    """For programs (`playhead.effects.input` sends it). The same question again is stored once; `answer` is null until
    somebody has answered. A run that continues another one gets the answers that were given to the other one."""
    questions = Questions(deps.database, deps.project)
    prompt = storable_text(deps.clean(new_question.prompt))
    name = question_id(prompt, new_question.branch, new_question.number)
    if len(await questions.list_run(run)) >= MOST_OF_RUN:
        raise Problem(409, "too_many_questions", f"run {run} has asked {MOST_OF_RUN:,} questions: begin another run")
    question = PersonQuestion(
        id=name,
        run=run,
        prompt=prompt,
        asked_from=storable_text(new_question.asked_from),
        asked_at=deps.now(),
        branch=storable_text(new_question.branch),
        number=new_question.number,
    )
    return JsonResponse(_shape(deps, await questions.ask(question, deps.writer)), 201)


@router.post("/runs/{run}/answers", summary="Answer a question of a run", status_code=201)
async def answer(deps: TheDeps, run: RunId, new_answer: NewAnswer) -> Response:
    """The first answer is valid. `by` is the name of the token if it is not given. The answer is part of the run's record,
    without secrets."""
    await require_run(deps, run)
    questions = Questions(deps.database, deps.project)
    name = new_answer.question or _only_waiting(run, await questions.list_run(run)).id
    by = storable_text(new_answer.by or deps.grant.token or "")
    value = storable_text(deps.clean(new_answer.value))
    try:
        stored = await questions.answer(run, name, PersonAnswer(value=value, by=by, at=deps.now()), deps.writer)
    except QuestionUnknown:
        raise not_found("question", name, deps.project) from None
    except AlreadyAnswered as error:
        raise _already_answered(error.question) from None
    return JsonResponse(_shape(deps, stored), 201)


def _only_waiting(run: str, questions: list[PersonQuestion]) -> PersonQuestion:
    waiting = [question for question in questions if question.answer is None]
    if not waiting:
        if questions:
            raise _already_answered(questions[-1])
        raise Problem(404, "unknown_question", f"run {run} has asked nobody anything")
    if len(waiting) > 1:
        names = ", ".join(question.id for question in waiting[:20])
        raise Problem(409, "several_questions", f"{len(waiting)} questions of run {run} wait: name one of {names}")
    return waiting[0]


def _already_answered(question: PersonQuestion) -> Problem:
    assert question.answer is not None
    when = f"{question.answer.by} at {rfc3339(question.answer.at)}"
    detail = f"question {question.id} of run {question.run} was answered by {when}, and the first answer is valid"
    return Problem(409, "already_answered", detail)


def _shape(deps: Deps, question: PersonQuestion) -> Shape:
    reads = deps.grant.reads_bodies
    person_answer = question.answer
    return {
        "question": question.id,
        "run": question.run,
        "prompt": question.prompt if reads else None,
        "asked_from": question.asked_from,
        "asked_at": rfc3339(question.asked_at),
        "answer": person_answer
        and {"value": person_answer.value if reads else None, "by": person_answer.by, "at": rfc3339(person_answer.at)},
    }
