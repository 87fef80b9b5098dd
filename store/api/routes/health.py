"""`/healthz`, `/readyz`, and `/metrics` in the text format of Prometheus."""

import asyncio
from dataclasses import asdict

from fastapi import APIRouter, Response

from store.api.answers import JsonResponse
from store.api.deps import TheDeps
from store.otlp.metrics import export_lines, export_troubles
from store.worker_counters import prometheus_lines

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the process answers")
async def healthz() -> Response:
    """200 as long as the process lives."""
    return JsonResponse({"status": "ok"})


@router.get("/readyz", summary="Whether recordings reach the database", responses={503: {}})
async def readyz(deps: TheDeps) -> Response:
    """503 while something prevents it. Recording continues into the spools meanwhile, and nothing is lost."""
    troubles = deps.store_server.troubles | await deps.db_health.troubles(deps.database)
    status = {"status": "in trouble" if troubles else "ok", "troubles": troubles, "spools": deps.store_server.spools}
    # An export that fails delays nothing: it makes nobody unready.
    status["exports"] = export_troubles(deps.followers.exports if deps.followers else ())
    return JsonResponse(status, 503 if troubles else 200)


@router.get("/metrics", summary="Counters since the start, for Prometheus")
async def metrics(deps: TheDeps) -> Response:
    """The text format of Prometheus, version 0.0.4."""
    counters = asdict(deps.store_server.counts)
    workers, waiting = await asyncio.to_thread(
        lambda: (deps.store_server.worker_counters.total(), deps.store_server.bytes_pending())
    )
    lines = [
        f"# TYPE playhead_store_{name}_total counter\nplayhead_store_{name}_total {n}" for name, n in counters.items()
    ]
    gauges = {"spools": deps.store_server.spools, "spool_bytes": waiting, "troubles": len(deps.store_server.troubles)}
    lines += [f"# TYPE playhead_store_{name} gauge\nplayhead_store_{name} {n}" for name, n in gauges.items()]
    lines += prometheus_lines(workers)
    lines += export_lines(deps.followers.exports if deps.followers else ())
    lines += deps.followers.call_metrics.lines() if deps.followers else ()
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")
