"""`/healthz`, `/readyz`, and `/metrics` in the text format of Prometheus."""

import asyncio
from dataclasses import asdict

from fastapi import APIRouter, Response

from store.api.answers import Json
from store.api.deps import TheDesk
from store.worker_counters import told

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the process answers")
async def healthz() -> Response:
    """200 as long as the process lives."""
    return Json({"status": "ok"})


@router.get("/readyz", summary="Whether what is recorded reaches the database", responses={503: {}})
async def readyz(desk: TheDesk) -> Response:
    """503 while something is in the way. Recording goes on into the spools meanwhile, and nothing is lost."""
    troubles = desk.keeper.troubles | await desk.pulse.troubles(desk.database)
    status = {"status": "in trouble" if troubles else "ok", "troubles": troubles, "spools": desk.keeper.spools}
    return Json(status, 503 if troubles else 200)


@router.get("/metrics", summary="Counters since the start, for Prometheus")
async def metrics(desk: TheDesk) -> Response:
    """The text format of Prometheus, version 0.0.4."""
    counters = asdict(desk.keeper.counts)
    doors, waiting = await asyncio.to_thread(lambda: (desk.keeper.counted.total(), desk.keeper.bytes_pending()))
    lines = [
        f"# TYPE playhead_keeper_{name}_total counter\nplayhead_keeper_{name}_total {n}" for name, n in counters.items()
    ]
    gauges = {"spools": desk.keeper.spools, "spool_bytes": waiting, "troubles": len(desk.keeper.troubles)}
    lines += [f"# TYPE playhead_keeper_{name} gauge\nplayhead_keeper_{name} {n}" for name, n in gauges.items()]
    lines += told(doors)
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")
