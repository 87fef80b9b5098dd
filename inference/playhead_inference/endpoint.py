"""The server's part: check before the first request is taken, and say on every answer what was found."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from playhead_inference.config import degraded
from playhead_inference.verdict import header

PATH: Final = "/batch_invariance"

log = logging.getLogger("vllm.playhead_inference")


class NotInvariant(RuntimeError):
    """The server may not say what it was started to say."""


class Endpoint:
    """vLLM's endpoint plugin."""

    name = "playhead_inference"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.report: dict[str, Any] | None = None

    def attach_router(self, app: FastAPI) -> None:
        """The route, and the header on everything."""

        async def batch_invariance() -> JSONResponse:
            return JSONResponse(self.report)

        app.get(PATH)(batch_invariance)
        app.add_middleware(Stamp, endpoint=self)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 # vLLM's signature
        """Check. Raising here ends the server before it listens."""
        from playhead_inference.check import Check

        report = await Check(engine_client).report()
        log.info("batch invariance: %s, %s", report["verdict"], report["fingerprint"])
        if report["verdict"] != "holds":
            _lament(report)
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
            return f"layers {report['layers']['differing']}, {cells}"
        case _ if not report["control"]:
            return "there is no control: stock vLLM was not asked first"
        case _:
            return "without the patch nothing varied either, so the check could not have failed"


def _sign(state: Any, report: dict[str, Any]) -> None:
    """Let `system_fingerprint` be ours, where clients and records look for it."""
    short = f"{header(report['verdict'])}-{report['fingerprint'].removeprefix('sha256:')[:16]}"
    for serving in state._state.values():
        if hasattr(serving, "system_fingerprint"):
            serving.system_fingerprint = f"playhead-{short}"


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Stamp:
    """Puts the verdict on every answer."""

    def __init__(self, app: Callable[[Scope, Any, Send], Awaitable[None]], endpoint: Endpoint) -> None:
        self.app, self.endpoint = app, endpoint

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Pure ASGI: a stream passes piece by piece."""
        report = self.endpoint.report
        if scope["type"] != "http" or report is None:
            await self.app(scope, receive, send)
            return
        stamps = [
            (b"x-batch-invariant", header(report["verdict"]).encode()),
            (b"x-batch-invariant-fingerprint", report["fingerprint"].encode()),
        ]

        async def stamped(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *stamps]}
            await send(message)

        await self.app(scope, receive, stamped)
