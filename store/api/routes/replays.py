"""`/v1/replays`: make replays, each with an id and a position of its own."""

import json
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calls.events import ReplayNoted
from store.api.answers import Json
from store.api.deps import TheDesk
from store.api.parameters import RUN_ID, RunId, WhenTold
from store.api.problems import Problem, unknown
from store.api.replay_parameters import Overrides, checked, fits
from store.api.routes.runs import shape
from store.generations.names import newest
from store.ingest.batch_writer import Ingest

router = APIRouter(tags=["replays"])

type Id = Annotated[str, StringConstraints(pattern=RUN_ID)]
type Host = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[A-Za-z0-9._:-]{1,253}$", to_lower=True)]


class ReplayRequest(BaseModel):
    """Which run is to answer."""

    model_config = ConfigDict(extra="forbid")
    run: Id
    id: Id | None = None
    """The id of the replay; one is made where it is not given."""

    overrides: Overrides = []
    """What is to be answered in place of the record (docs/forks.md)."""

    on_miss: Literal["fail", "live", "record"] = "fail"
    """What becomes of a request that was not recorded: refused; asked for real; or that, and recorded for the run's next
    generation. Workers in mode `auto` only."""

    after_last: Literal["miss", "repeat-last", "cycle"] = "miss"
    pace: Annotated[str, StringConstraints(pattern=r"^(instant|recorded|[0-9]+(\.[0-9]+)?)$", max_length=20)] = (
        "instant"
    )
    allow_unused: bool = False
    allowed_hosts: Annotated[list[Host], Field(max_length=100)] = []
    """Hosts that may be asked for real (`*.name`: all below it). Workers in mode `auto` only."""


class ReplayEnd(BaseModel):
    """How a replay ended."""

    model_config = ConfigDict(extra="forbid")
    succeeded: bool | None = None
    """Whether the agent came to its good end; nothing where nobody knows."""


@router.post("/replays", summary="Make a replay of a run", status_code=201)
async def post_replay(desk: TheDesk, wanted: ReplayRequest) -> Response:
    """Its id is then the run in the credentials of the clients that are to be answered from it."""
    if desk.mode not in ("replay", "auto"):
        detail = (
            f"the workers of this store server are in mode {desk.mode} and answer nothing from recordings;"
            f" start `playhead up --mode auto` (or replay), or run: playhead replay {wanted.run} -- COMMAND"
        )
        raise Problem(409, "not_replaying", detail)
    if desk.mode == "replay" and (wanted.on_miss != "fail" or wanted.allowed_hosts):
        detail = (
            "workers in mode replay ask nobody for real; start `playhead up --mode auto` for on_miss and allowed_hosts"
        )
        raise Problem(409, "not_live", detail)
    run = await shape(desk, wanted.run)
    recorded = run["exchanges"]
    name = wanted.id or f"replay-{secrets.token_hex(8)}"
    if await desk.runs.replay(name) is not None:
        raise Problem(409, "replay_exists", f"there is a replay {name} already; choose another id, or give none")
    report = begun(name, wanted.run, recorded)
    overrides = checked(wanted.overrides, recorded, desk.clean)
    options = wanted.model_dump(include={"on_miss", "after_last", "pace", "allow_unused", "allowed_hosts"})
    report["wishes"] = {"overrides": overrides, "fork": None, "options": options}
    await fits(desk, newest(wanted.run, run), report["wishes"], name)
    await Ingest(desk.database).put((), replays=[ReplayNoted(name, json.dumps(report).encode())])
    if desk.modes is not None:
        desk.modes.mark_only(name)
    return Json(report, 201, {"location": f"/v1/replays/{name}"})


@router.get("/replays/{replay}", summary="The report of a replay, so far")
async def get_replay(desk: TheDesk, replay: RunId, settled: WhenTold) -> Response:
    """`verdict` is right, diverged, or unknown."""
    report = await desk.runs.replay(replay)
    if report is None:
        raise unknown("replay", replay)
    return Json(json.loads(report) | settled.told)


@router.post("/replays/{replay}/end", summary="End a replay: what it recorded live counts now, or does not")
async def end_replay(desk: TheDesk, replay: RunId, ending: ReplayEnd | None = None) -> Response:
    """`generation` tells of what was recorded: the run's next generation, or why it is none."""
    if await desk.runs.replay(replay) is None:
        raise unknown("replay", replay)
    if desk.takes is not None:
        await desk.takes.end(replay, succeeded=(ending or ReplayEnd()).succeeded)
    return Json(json.loads(await desk.runs.replay(replay) or b"{}"))


def begun(replay: str, run: str, recorded: int) -> dict[str, Any]:
    """The report of a replay of which nothing was asked yet, with every member that the worker's reports have."""
    counts = ("served", "missed", "live", "edited", "ambiguous", "strict", "semantic", "again", "reframed", "drifted")
    return {
        "id": replay,
        "run": run,
        "recorded": recorded,
        "unused": recorded,
        **dict.fromkeys(counts, 0),
        **{name: [] for name in ("drift", "misses", "left_over")},
        "first_divergence": None,
        "verdict": "unknown",
        "allow_unused": False,
        "interrupted": False,
    }
