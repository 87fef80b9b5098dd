"""`/v1/drift`: changes of the models behind their names."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from store.api.answers import JsonResponse
from store.api.deps import TheDeps
from store.api.parameters import Text, Time, WhenSettled, parse_nanoseconds
from store.query.drift import AnswerComparison, DriftQuestion, find_model_changes

router = APIRouter(tags=["compare"])


def _drift_question(since: Time = None, until: Time = None, model: Text = None, provider: Text = None) -> DriftQuestion:
    times = parse_nanoseconds("since", since), parse_nanoseconds("until", until)
    return DriftQuestion(since=times[0], until=times[1], model=model, provider=provider)


type TheQuestion = Annotated[DriftQuestion, Depends(_drift_question)]


@router.get("/drift", summary="Changes of the model behind a name, newest first")
async def get_drift(deps: TheDeps, question: TheQuestion, settled: WhenSettled) -> Response:
    """From ordinary runs (docs/compare.md): the changes, all models that answered, and requests that were repeated."""
    ignoring = AnswerComparison(recorded=deps.exchange_queries, derive=deps.derive, profiles=deps.profiles)
    return JsonResponse(
        await find_model_changes(deps.database, question, deps.project, comparison=ignoring) | settled.members
    )
