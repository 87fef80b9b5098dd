"""`/v1/drift`: whether providers changed the models behind their names."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from store.api.answers import Json
from store.api.deps import TheDesk
from store.api.parameters import Text, Time, WhenSettled, nanoseconds
from store.query.drift import AnswerComparison, DriftQuestion, drift

router = APIRouter(tags=["compare"])


def _asked(since: Time = None, until: Time = None, model: Text = None, provider: Text = None) -> DriftQuestion:
    times = nanoseconds("since", since), nanoseconds("until", until)
    return DriftQuestion(since=times[0], until=times[1], model=model, provider=provider)


type TheQuestion = Annotated[DriftQuestion, Depends(_asked)]


@router.get("/drift", summary="Where another model began to answer to a name, the newest first")
async def get_drift(desk: TheDesk, asked: TheQuestion, settled: WhenSettled) -> Response:
    """From ordinary runs (docs/compare.md): changes, all who ever answered, and what was asked again."""
    ignoring = AnswerComparison(recorded=desk.recorded, derive=desk.derive, profiles=desk.profiles)
    return Json(await drift(desk.database, asked, ignoring=ignoring) | settled.told)
