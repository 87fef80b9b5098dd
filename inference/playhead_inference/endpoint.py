"""Run the self-check before the server accepts requests, and label every answer with what the check claims for it."""

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from playhead_inference.claims import claim_for, not_claimed_value
from playhead_inference.config import is_degraded

PATH: Final = "/batch_invariance"

MAX_BODY: Final = 8 << 20
"""Maximum bytes of a request's body that are inspected. Nothing is claimed for a larger request."""

log = logging.getLogger("vllm.playhead_inference")


class BatchInvarianceError(RuntimeError):
    """The self-check did not prove batch invariance; the message says why."""


class Endpoint:
    """The endpoint plugin of vLLM's server."""

    name = "playhead_inference"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.report: dict[str, Any] | None = None
        self.defaults: dict[str, Any] = {}
        """Sampling parameters of the model's generation config, which apply if a request does not set them."""

    def attach_router(self, app: FastAPI) -> None:
        """Add the route, and the middleware that adds headers to all answers."""

        async def batch_invariance() -> JSONResponse:
            return JSONResponse(self.report)

        app.get(PATH)(batch_invariance)
        app.add_middleware(ClaimMiddleware, endpoint=self)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Run the self-check. An exception here ends the server before it listens."""
        from playhead_inference.check import SelfCheck

        report = await SelfCheck(engine_client, args).report()
        remembered = f", as checked on {report.get('checked_at')}" if report.get("cached") else ""
        log.info("batch invariance: %s%s, %s", report["verdict"], remembered, report["fingerprint"])
        if report["verdict"] != "holds":
            _report_failure(report)
        if engine_client is not None:
            self.defaults = engine_client.vllm_config.model_config.get_diff_sampling_param()
        self.report = report
        _set_system_fingerprint(state, report)


def _report_failure(report: dict[str, Any]) -> None:
    message = f"batch invariance {report['verdict']}: {failure_reason(report)}"
    if not is_degraded():
        raise BatchInvarianceError(f"{message}; to serve anyway, without the claim, use --degrade")
    log.warning("SERVED WITHOUT THE CLAIM: %s", message)


def failure_reason(report: dict[str, Any]) -> str:
    """The reason why the check did not hold, in one sentence."""
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
            return "there is no control run of stock vLLM"
        case _:
            return "nothing varied without the patch either, so the check could not have failed"


def _set_system_fingerprint(state: Any, report: dict[str, Any]) -> None:
    """Set `system_fingerprint` in answers to the check's fingerprint."""
    kind = "" if report["verdict"] == "holds" else f"{report['verdict']}-"
    short = f"{kind}{report['fingerprint'].removeprefix('sha256:')[:16]}"
    for serving in state._state.values():
        if hasattr(serving, "system_fingerprint"):
            serving.system_fingerprint = f"playhead-{short}"


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ClaimMiddleware:
    """Adds headers to every answer that state what is claimed for it, depending on what its request uses."""

    def __init__(self, app: Callable[[Scope, Any, Send], Awaitable[None]], endpoint: Endpoint) -> None:
        self.app, self.endpoint = app, endpoint

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Handle one ASGI request. Bodies are passed on piece by piece, in both directions."""
        report = self.endpoint.report
        if scope["type"] != "http" or report is None:
            await self.app(scope, receive, send)
            return
        body = bytearray()

        async def receive_body() -> Any:
            message = await receive()
            if message["type"] == "http.request" and len(body) <= MAX_BODY:
                body.extend(message.get("body", b""))
            return message

        async def send_with_claim(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                said = self._claim(report["verdict"], scope, bytes(body), message["status"])
                stamps = [
                    (b"x-batch-invariant", said.encode()),
                    (b"x-batch-invariant-fingerprint", report["fingerprint"].encode()),
                ]
                message = {**message, "headers": [*message.get("headers", ()), *stamps]}
            await send(message)

        await self.app(scope, receive_body, send_with_claim)

    def _claim(self, verdict: str, scope: Scope, body: bytes, status: int) -> str:
        if verdict != "holds":
            return "inconclusive" if verdict == "inconclusive" else "false"
        if status != 200:
            return not_claimed_value(f"status-{status}")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] != "POST" or len(body) > MAX_BODY:
            return not_claimed_value("path" if len(body) <= MAX_BODY else "large-body")
        try:
            request = json.loads(body)
        except ValueError:
            return not_claimed_value("body")
        return claim_for(path, request, self.endpoint.defaults)
