"""`/v1/runs/{run}/forks`: make a run that begins as another one and leaves it at a step."""

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calls.effects import BadRule, effects
from calls.events import ReplayNoted
from store.api.answers import Json
from store.api.deps import Deps, TheDesk
from store.api.parameters import RUN_ID, RunId
from store.api.problems import Problem
from store.api.replay_parameters import Overrides, checked, fits
from store.api.routes.replays import begun
from store.api.routes.runs import shape
from store.generations.fork_point import last_whole
from store.generations.names import newest
from store.ingest.batch_writer import Ingest

router = APIRouter(tags=["replays"])

type Id = Annotated[str, StringConstraints(pattern=RUN_ID)]
type Word = Annotated[str, StringConstraints(max_length=300)]


class ForkRequest(BaseModel):
    """Where the fork leaves the record, and what holds from there."""

    model_config = ConfigDict(extra="forbid")
    at: Annotated[int | None, Field(ge=0, le=1 << 30, alias="from")] = None
    """The last step that the record answers; without it the last one that was answered whole, where a run is resumed."""

    id: Id | None = None
    """The id of the new run; one is made where it is not given."""

    labels: dict[Word, Word] = {}
    overrides: Overrides = []
    effects: list[Word] = []
    """`POLICY` for whatever may change something, or `[METHOD ]HOST=POLICY`."""

    allow: list[Word] = []
    """`HOST` or `METHOD HOST`: such calls go out."""


@router.post("/runs/{run}/forks", summary="Fork a run", status_code=201)
async def post_fork(desk: TheDesk, run: RunId, wanted: ForkRequest) -> Response:
    """Its id is then the run in the credentials of the clients: answered from the record, then live, and recorded."""
    parent = await shape(desk, run)
    if desk.mode != "auto":
        detail = (
            f"the workers of this store server are in mode {desk.mode}, and a fork goes live after its prefix;"
            f" start `playhead up --mode auto`, or run: playhead fork {run} --from K -- COMMAND"
        )
        raise Problem(409, "not_forking", detail)
    name = wanted.id or f"fork-{desk.now():x}"
    at = await _left_at(desk, run, wanted, parent["exchanges"])
    report = _report(desk, name, run, at, wanted)
    if await desk.runs.get(name, desk.now()) is not None or await desk.runs.replay(name) is not None:
        raise Problem(409, "run_exists", f"there is a run or a replay {name} already; choose another id, or give none")
    await fits(desk, newest(run, parent), report["wishes"], name)
    labels = {desk.clean(label): desk.clean(value) for label, value in wanted.labels.items()}
    await desk.runs.put(name, desk.now(), labels=labels, parent=run, forked_at=at)
    await Ingest(desk.database).put((), replays=[ReplayNoted(name, json.dumps(report).encode())])
    if desk.modes is not None:
        desk.modes.mark_only(name)
    return Json(report, 201, {"location": f"/v1/replays/{name}"})


async def _left_at(desk: Deps, run: str, wanted: ForkRequest, steps: int) -> int:
    """The step it leaves from. Raises Problem where the run does not come so far."""
    if wanted.at is None:
        await desk.recorded.check_run(run, is_held=True)
        exchanges = [exchange async for exchange in desk.recorded.exchanges(run)]
        return await asyncio.to_thread(last_whole, exchanges, desk.derive)
    if wanted.at > steps:
        detail = f"run {run} ends at step {steps}, so it cannot be forked at step {wanted.at}; name an earlier one"
        raise Problem(422, "no_such_step", detail)
    return wanted.at


def _report(desk: Deps, name: str, run: str, at: int, wanted: ForkRequest) -> dict[str, Any]:
    """The report of a fork that nobody has asked anything. Raises Problem for what cannot be wished for."""
    try:
        effects(wanted.effects, wanted.allow)
    except BadRule as error:
        raise Problem(422, "bad_effects", str(error)) from error
    fork = {"at": at, "effects": wanted.effects, "allow": wanted.allow}
    wishes = {"overrides": checked(wanted.overrides, at, desk.clean), "fork": fork}
    told = {"parent": run, "forked_at": at, "later": 0, "blocked": 0, "blocked_calls": []}
    return begun(name, run, at) | {"fork": told, "wishes": wishes}
