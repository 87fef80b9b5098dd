"""Have a helper process answer a request whose exchanges are too large for the store server's own memory.

The answer lies in a file. A short one is sent when it is whole; one that takes longer is sent as it grows, so that no
client gives up meanwhile. Where it then fails it breaks off, and no reader takes it for a whole one.
"""

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from store.api.deps import Deps
from store.api.problems import Problem
from store.api.spilled_answers import BODY, PAUSE, SETTLED
from store.large.jobs import HelperJob, RenderJob, RenderResult, Reply

log = logging.getLogger(__name__)

PIECE: Final = 256 << 10

WHOLE_WITHIN: Final = 2.0
"""Seconds that an answer may take to be sent as a whole, with its length, or with a problem in its place."""

LOOK: Final = 0.25
"""Seconds between two looks at an answer that grows."""

_PASSED_ON: Final = frozenset(("content-type", "accept", "range", "if-none-match", "last-event-id"))


async def answer(request: Request, _: Exception) -> Response:
    """The answer of a helper process to the same request; a problem where it cannot answer within its limits."""
    desk: Deps = request.app.state.desk
    body = request.scope.get(BODY)
    if desk.helper is None or body is None:
        return _too_large("it is too large for this process").response(request.url.path)
    return _HelperAnswer(desk, request, bytes(body))


async def answer_file(request: Request, sent: Path) -> Response:
    """The same, where the request's body lies in a file; it is waited for."""
    desk: Deps = request.app.state.desk
    assert desk.helper is not None
    # The turn is for those who work in this process.
    async with _pause(request.scope):
        with tempfile.TemporaryDirectory(dir=desk.spilled, prefix="answer-") as place:
            made = Path(place, "answer")
            reply = await desk.helper.run(HelperJob(render=_job(request, sent, made)))
            if reply.rendering is None:
                return _refusal(desk, reply).response(request.url.path)
            # The file is opened before its directory goes.
            handle = os.open(made, os.O_RDONLY)
    headers = {name: value for name, value in reply.rendering.headers if name != "content-length"}
    headers["content-length"] = str(os.fstat(handle).st_size)
    return StreamingResponse(_pieces_to_end(handle), reply.rendering.status, headers)


class _HelperAnswer(Response):
    """Runs the job when it is sent."""

    def __init__(self, desk: Deps, request: Request, body: bytes) -> None:
        super().__init__()
        self._desk = desk
        self._request = request
        self._sent = body
        self._begun: RenderResult | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        assert self._desk.helper is not None
        async with _pause(scope):
            with tempfile.TemporaryDirectory(dir=self._desk.spilled, prefix="answer-") as place:
                sent, made = Path(place, "request"), Path(place, "answer")
                sent.write_bytes(self._sent)  # noqa: ASYNC240 - a megabyte at most
                made.touch(0o600)  # noqa: ASYNC240 - one name
                async with asyncio.TaskGroup() as group:
                    job = HelperJob(render=_job(self._request, sent, made))
                    running = group.create_task(self._desk.helper.run(job, self._note))
                    await asyncio.wait([running], timeout=WHOLE_WITHIN)
                    while not running.done() and self._begun is None:
                        await asyncio.wait([running], timeout=LOOK)
                    if running.done() and (reply := running.result()).rendering is None:
                        refusal = _refusal(self._desk, reply).response(self._request.url.path)
                        await refusal(scope, receive, send)
                    else:
                        await self._send(running, made, send)

    def _note(self, reply: Reply) -> None:
        self._begun = reply.rendering

    async def _send(self, running: asyncio.Task[Reply], made: Path, send: Send) -> None:
        """Send what there is, until the job is over."""
        with made.open("rb", buffering=0) as file:
            is_started = False
            while True:
                rendering = running.result().rendering if (is_over := running.done()) else self._begun
                if rendering is None:
                    # Without its last message the answer breaks off.
                    log.warning("the answer to %s broke off: %s", self._request.url.path, running.result().failed)
                    return
                if not is_started:
                    size = os.fstat(file.fileno()).st_size if is_over else None
                    await send(_head(rendering, size))
                    is_started = True
                for piece in _pieces(file.fileno()):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                if is_over:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                await asyncio.wait([running], timeout=LOOK)


def _head(rendering: RenderResult, size: int | None) -> dict[str, object]:
    headers = [(name, value) for name, value in rendering.headers if name != "content-length"]
    headers += [] if size is None else [("content-length", str(size))]
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": rendering.status, "headers": raw}


def _job(request: Request, sent: Path, made: Path) -> RenderJob:
    return RenderJob(
        method=request.method,
        path=request.url.path,
        query=request.url.query,
        headers=[(name, value) for name, value in request.headers.items() if name in _PASSED_ON],
        body=str(sent),
        to=str(made),
        settled=request.scope.get(SETTLED),
    )


def _pause(scope: Scope) -> contextlib.AbstractAsyncContextManager[None]:
    """Leave the turn to others (`store.api.spilled_answers`)."""
    pause: contextlib.AbstractAsyncContextManager[None] = scope.get(PAUSE, contextlib.nullcontext)()
    return pause


def _refusal(desk: Deps, reply: Reply) -> Problem:
    if reply.is_unavailable:
        desk.store_server.database_lost()
    status, name = (503, "database_unavailable") if reply.is_unavailable else (507, "too_large")
    return _too_large(reply.failed or "", status, name)


def _too_large(why: str, status: int = 507, name: str = "too_large") -> Problem:
    detail = (
        f"this cannot be answered here: {why}. Ask for less: a smaller `limit`, fewer `fields`, or the stored bytes at"
        " /v1/exchanges/{id}/request and /response"
    )
    return Problem(status, name, detail)


def _pieces(handle: int) -> Iterator[bytes]:
    while piece := os.read(handle, PIECE):
        yield piece


async def _pieces_to_end(handle: int) -> AsyncIterator[bytes]:
    try:
        for piece in _pieces(handle):
            yield piece
    finally:
        os.close(handle)


async def lines_of(desk: Deps, path: str, body: bytes) -> list[bytes]:
    """The lines with which a helper process answers a POST. Raises Problem where it does not."""
    assert desk.helper is not None
    with tempfile.TemporaryDirectory(dir=desk.spilled, prefix="answer-") as place:
        sent, made = Path(place, "request"), Path(place, "answer")
        sent.write_bytes(body)  # noqa: ASYNC240 - a few names
        headers = [("content-type", "application/json")]
        job = RenderJob(method="POST", path=path, query="", headers=headers, body=str(sent), to=str(made))
        reply = await desk.helper.run(HelperJob(render=job))
        if reply.rendering is None or reply.rendering.status != 200:
            raise _too_large(reply.failed or "its helper process refused it")
        return made.read_bytes().splitlines()  # noqa: ASYNC240 - a report
