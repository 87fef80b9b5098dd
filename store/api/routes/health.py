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
    troubles = desk.store_server.troubles | await desk.pulse.troubles(desk.database)
    status = {"status": "in trouble" if troubles else "ok", "troubles": troubles, "spools": desk.store_server.spools}
    return Json(status, 503 if troubles else 200)


@router.get("/metrics", summary="Counters since the start, for Prometheus")
async def metrics(desk: TheDesk) -> Response:
    """The text format of Prometheus, version 0.0.4."""
    counters = asdict(desk.store_server.counts)
    workers, waiting = await asyncio.to_thread(
        lambda: (desk.store_server.counted.total(), desk.store_server.bytes_pending())
    )
    lines = [
        f"# TYPE playhead_store_{name}_total counter\nplayhead_store_{name}_total {n}" for name, n in counters.items()
    ]
    gauges = {"spools": desk.store_server.spools, "spool_bytes": waiting, "troubles": len(desk.store_server.troubles)}
    lines += [f"# TYPE playhead_store_{name} gauge\nplayhead_store_{name} {n}" for name, n in gauges.items()]
    lines += told(workers)
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")
