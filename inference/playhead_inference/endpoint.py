"""The server's part: check before the first request is taken, and say of every answer whether the check stands for it."""

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from playhead_inference.claims import claim, not_claimed
from playhead_inference.config import degraded

PATH: Final = "/batch_invariance"

LARGEST: Final = 8 << 20
"""Bytes of a request's body that are read to see what it uses; of a larger one nothing is claimed."""

log = logging.getLogger("vllm.playhead_inference")


class NotInvariant(RuntimeError):
    """The server may not say what it was started to say."""


class Endpoint:
    """vLLM's endpoint plugin."""

    name = "playhead_inference"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.report: dict[str, Any] | None = None
        self.defaults: dict[str, Any] = {}
        """What the server sets where a request says nothing: the model's generation config."""

    def attach_router(self, app: FastAPI) -> None:
        """The route, and the headers on everything."""

        async def batch_invariance() -> JSONResponse:
            return JSONResponse(self.report)

        app.get(PATH)(batch_invariance)
        app.add_middleware(Stamp, endpoint=self)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Check. Raising here ends the server before it listens."""
        from playhead_inference.check import Check

        report = await Check(engine_client, args).report()
        remembered = f", as checked on {report.get('checked_at')}" if report.get("cached") else ""
        log.info("batch invariance: %s%s, %s", report["verdict"], remembered, report["fingerprint"])
        if report["verdict"] != "holds":
            _lament(report)
        if engine_client is not None:
            self.defaults = engine_client.vllm_config.model_config.get_diff_sampling_param()
        self.report = report
        _sign(state, report)


def _lament(report: dict[str, Any]) -> None:
    said = f"batch invariance {report['verdict']}: {why(report)}"
    if not degraded():
        raise NotInvariant(f"{said}; to serve all the same, without the claim, use --degrade")
    log.warning("SERVED WITHOUT THE CLAIM: %s", said)


def why(report: dict[str, Any]) -> str:
    """The reason in one sentence."""
    match report["verdict"]:
        case "refused":
            return "; ".join(report["refused"])
        case "varies":
            cells = ", ".join(
                f"{cell['name']}: {cell['distinct']} distinct of {cell['answers']}" for cell in report["patched"]
            )
            return f"layers and operations {report['layers']['differing']}, {cells}"
        case _ if report.get("uncovered"):
            return "the check covered less than the model has: " + "; ".join(report["uncovered"][:8])
        case _ if not report["control"]:
            return "there is no control: stock vLLM was not asked first"
        case _:
            return "without the patch nothing varied either, so the check could not have failed"


def _sign(state: Any, report: dict[str, Any]) -> None:
    """Let `system_fingerprint` be ours, where clients and records look for it."""
    kind = "" if report["verdict"] == "holds" else f"{report['verdict']}-"
    short = f"{kind}{report['fingerprint'].removeprefix('sha256:')[:16]}"
    for serving in state._state.values():
        if hasattr(serving, "system_fingerprint"):
            serving.system_fingerprint = f"playhead-{short}"


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Stamp:
    """Puts on every answer what is claimed of it, by what its request used."""

    def __init__(self, app: Callable[[Scope, Any, Send], Awaitable[None]], endpoint: Endpoint) -> None:
        self.app, self.endpoint = app, endpoint

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Pure ASGI: bodies pass piece by piece, in both directions."""
        report = self.endpoint.report
        if scope["type"] != "http" or report is None:
            await self.app(scope, receive, send)
            return
        body = bytearray()

        async def read() -> Any:
            message = await receive()
            if message["type"] == "http.request" and len(body) <= LARGEST:
                body.extend(message.get("body", b""))
            return message

        async def stamped(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                said = self._claim(report["verdict"], scope, bytes(body), message["status"])
                stamps = [
                    (b"x-batch-invariant", said.encode()),
                    (b"x-batch-invariant-fingerprint", report["fingerprint"].encode()),
                ]
                message = {**message, "headers": [*message.get("headers", ()), *stamps]}
            await send(message)

        await self.app(scope, read, stamped)

    def _claim(self, verdict: str, scope: Scope, body: bytes, status: int) -> str:
        if verdict != "holds":
            return "inconclusive" if verdict == "inconclusive" else "false"
        if status != 200:
            return not_claimed(f"status-{status}")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] != "POST" or len(body) > LARGEST:
            return not_claimed("path" if len(body) <= LARGEST else "large-body")
        try:
            request = json.loads(body)
        except ValueError:
            return not_claimed("body")
        return claim(path, request, self.endpoint.defaults)
