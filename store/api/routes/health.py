"""`/healthz`, `/readyz`, `/metrics` in the text format of Prometheus; `/ca.pem`, the certificate that clients of the proxy must trust.

The certificate is for machines and containers that cannot read its files.
"""

import asyncio
import re
from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter, Response

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.problems import Problem
from store.canaries import canary_metrics, load_all_canaries
from store.database.connection import DatabaseError
from store.otlp.metrics import export_lines, export_troubles
from store.worker_counters import prometheus_lines

router = APIRouter(tags=["health"], route_class=DeferredRoute)

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+?-----END CERTIFICATE-----\r?\n?")

_LARGEST_FILE = 16 << 20
"""Bytes that are read of a file with roots; those of today's systems have 300 kB."""


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
    if (trouble := deps.database.objects.trouble) is not None:
        # Large bodies are in the database meanwhile.
        status["objects"] = trouble
    if deps.sealer is not None and (count := len(deps.sealer.troubles)):
        # Everybody may read this: it names no project.
        status["proof"] = (
            f"nothing new is proven in {count} {'project' if count == 1 else 'projects'}: the signed tree was altered or set back;"
            " run `playhead verify --all`"
        )
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
    objects = deps.database.objects.counts()
    lines += [f"# TYPE playhead_store_{name} counter\nplayhead_store_{name} {n}" for name, n in objects.items()]
    gauges = {"spools": deps.store_server.spools, "spool_bytes": waiting, "troubles": len(deps.store_server.troubles)}
    if deps.sealer is not None:
        gauges["unsigned_projects"] = len(deps.sealer.troubles)
    if objects:
        gauges["objects_unavailable"] = int(deps.database.objects.trouble is not None)
    lines += [f"# TYPE playhead_store_{name} gauge\nplayhead_store_{name} {n}" for name, n in gauges.items()]
    lines += prometheus_lines(workers)
    lines += export_lines(deps.followers.exports if deps.followers else ())
    lines += deps.followers.call_metrics.lines() if deps.followers else ()
    try:
        lines += canary_metrics(await load_all_canaries(deps.database))
    except DatabaseError:
        pass  # /readyz says so, and the other numbers count on
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


@router.get("/ca.pem", summary="The certificate of the proxy's CA", tags=["certificate"])
async def ca(deps: TheDeps) -> Response:
    """PEM. It is public, so no token is required."""
    return await _certificate_response(deps.key_directory, "ca.pem")


@router.get(
    "/ca-bundle.pem", summary="The CA's certificate and the system's roots, for variables that replace all roots"
)
async def ca_bundle(deps: TheDeps) -> Response:
    """PEM. It is public, so no token is required."""
    return await _certificate_response(deps.key_directory, "ca-bundle.pem")


async def _certificate_response(keys: Path | None, name: str) -> Response:
    found = b"" if keys is None else await asyncio.to_thread(_read_certificates, keys / name)
    if not found:
        detail = (
            "there is no certificate yet: the proxy creates it at its first start, in the data directory that it shares"
        )
        raise Problem(404, "no_certificate", f"{detail} with the store server; try again when the proxy runs")
    return Response(found, media_type="application/pem-certificate-chain")


def _read_certificates(path: Path) -> bytes:
    """Return the certificates in a file, without anything else that it may hold, such as a private key."""
    try:
        with path.open("rb") as file:
            return b"".join(_CERTIFICATE.findall(file.read(_LARGEST_FILE)))
    except OSError:
        return b""
