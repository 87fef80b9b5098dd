"""Have a helper process answer a request whose exchanges are too large for the store server's own memory.

The helper process writes the answer to a file. An answer that is ready soon is sent with its length; one that takes longer
is sent as it grows, so that the client does not time out. If it then fails, the response ends without its terminating
chunk, so that no client mistakes it for a complete one.
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

from store.access.grants import GRANT
from store.api.deps import Deps
from store.api.problems import Problem
from store.api.spilled_answers import BODY, SETTLED, YIELD_TURN
from store.large.jobs import HelperJob, RenderJob, RenderResult, Reply

log = logging.getLogger(__name__)

PIECE: Final = 256 << 10

WHOLE_WITHIN: Final = 2.0
"""Seconds to wait for the complete answer, which is then sent with its length, or for a failure to report as a problem."""

POLL_INTERVAL: Final = 0.25
"""Seconds between two reads of an answer that grows."""

REQUEST_LESS: Final = (
    "Request less: a smaller `limit`, fewer `fields`, or the stored bytes at /v1/exchanges/{id}/request and /response"
)
"""What to do about an answer that is too large."""

_PASSED_ON: Final = frozenset(("content-type", "accept", "range", "if-none-match", "last-event-id"))


async def answer_in_helper(request: Request, _: Exception) -> Response:
    """Answer the request in the helper process; with a problem where that exceeds the helper's limits."""
    deps: Deps = request.app.state.deps
    body = request.scope.get(BODY)
    if deps.helper is None or body is None:
        return _too_large("it needs more memory than this process may use", REQUEST_LESS).response(request.url.path)
    return _HelperAnswer(deps, request, bytes(body))


async def answer_upload_in_helper(request: Request, request_file: Path, advice: str) -> Response:
    """Answer a request whose body is in a file in the helper process, and wait for the complete answer.

    `advice` says what to do if it is too large.
    """
    deps: Deps = request.app.state.deps
    assert deps.helper is not None
    # The turn is for requests that work in this process.
    async with _pause(request.scope):
        with tempfile.TemporaryDirectory(dir=deps.spill_directory, prefix="answer-") as place:
            answer_file = Path(place, "answer")
            reply = await deps.helper.run(HelperJob(render=_job(request, request_file, answer_file)))
            if reply.rendering is None:
                return _failure(deps, reply, advice).response(request.url.path)
            # Open the file before its directory is deleted.
            handle = os.open(answer_file, os.O_RDONLY)
    headers = {name: value for name, value in reply.rendering.headers if name != "content-length"}
    headers["content-length"] = str(os.fstat(handle).st_size)
    return StreamingResponse(_pieces_to_end(handle), reply.rendering.status, headers)


class _HelperAnswer(Response):
    """A response that runs the helper's job when it is sent."""

    def __init__(self, deps: Deps, request: Request, body: bytes) -> None:
        super().__init__()
        self._deps = deps
        self._request = request
        self._sent = body
        self._rendering: RenderResult | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the job and send its answer."""
        assert self._deps.helper is not None
        async with _pause(scope):
            with tempfile.TemporaryDirectory(dir=self._deps.spill_directory, prefix="answer-") as place:
                request_file, answer_file = Path(place, "request"), Path(place, "answer")
                request_file.write_bytes(self._sent)  # noqa: ASYNC240 - a megabyte at most
                answer_file.touch(0o600)  # noqa: ASYNC240 - one name
                async with asyncio.TaskGroup() as group:
                    job = HelperJob(render=_job(self._request, request_file, answer_file))
                    running = group.create_task(self._deps.helper.run(job, self._note_progress))
                    await asyncio.wait([running], timeout=WHOLE_WITHIN)
                    while not running.done() and self._rendering is None:
                        await asyncio.wait([running], timeout=POLL_INTERVAL)
                    if running.done() and (reply := running.result()).rendering is None:
                        refusal = _failure(self._deps, reply, REQUEST_LESS).response(self._request.url.path)
                        await refusal(scope, receive, send)
                    else:
                        await self._send(running, answer_file, send)

    def _note_progress(self, reply: Reply) -> None:
        self._rendering = reply.rendering

    async def _send(self, running: asyncio.Task[Reply], answer_file: Path, send: Send) -> None:
        """Send the answer as it grows, until the job has ended."""
        with answer_file.open("rb", buffering=0) as file:
            is_started = False
            while True:
                rendering = running.result().rendering if (is_over := running.done()) else self._rendering
                if rendering is None:
                    # Without its last message the client sees that the response is incomplete.
                    log.warning("the response to %s is incomplete: %s", self._request.url.path, running.result().failed)
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
                await asyncio.wait([running], timeout=POLL_INTERVAL)


def _head(rendering: RenderResult, size: int | None) -> dict[str, object]:
    headers = [(name, value) for name, value in rendering.headers if name != "content-length"]
    headers += [] if size is None else [("content-length", str(size))]
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": rendering.status, "headers": raw}


def _job(request: Request, request_file: Path, answer_file: Path) -> RenderJob:
    return RenderJob(
        method=request.method,
        path=request.url.path,
        query=request.url.query,
        headers=[(name, value) for name, value in request.headers.items() if name in _PASSED_ON],
        body=str(request_file),
        to=str(answer_file),
        settled=request.scope.get(SETTLED),
        grant=request.scope[GRANT],
    )


def _pause(scope: Scope) -> contextlib.AbstractAsyncContextManager[None]:
    """Give up the turn meanwhile (`store.api.spilled_answers`)."""
    pause: contextlib.AbstractAsyncContextManager[None] = scope.get(YIELD_TURN, contextlib.nullcontext)()
    return pause


def _failure(deps: Deps, reply: Reply, advice: str) -> Problem:
    why = reply.failed or "the helper process refused it"
    if reply.is_unavailable:
        deps.store_server.note_database_lost()
        return Problem(503, "database_unavailable", f"{why} Try again later.", headers={"retry-after": "1"})
    return _too_large(why, advice)


def _too_large(why: str, advice: str) -> Problem:
    return Problem(507, "too_large", f"the request cannot be answered: {why}. {advice}")


def _pieces(handle: int) -> Iterator[bytes]:
    while piece := os.read(handle, PIECE):
        yield piece


async def _pieces_to_end(handle: int) -> AsyncIterator[bytes]:
    try:
        for piece in _pieces(handle):
            yield piece
    finally:
        os.close(handle)


async def post_in_helper(deps: Deps, path: str, body: bytes, advice: str) -> list[bytes]:
    """Return the lines of the helper process's answer to a POST. Raises Problem where it fails.

    `advice` says what to do if it takes too much memory or time.
    """
    assert deps.helper is not None
    with tempfile.TemporaryDirectory(dir=deps.spill_directory, prefix="answer-") as place:
        request_file, answer_file = Path(place, "request"), Path(place, "answer")
        request_file.write_bytes(body)  # noqa: ASYNC240 - a few names
        headers = [("content-type", "application/json")]
        job = RenderJob(
            method="POST",
            path=path,
            query="",
            headers=headers,
            body=str(request_file),
            to=str(answer_file),
            grant=deps.grant,
        )
        reply = await deps.helper.run(HelperJob(render=job))
        if reply.rendering is None or reply.rendering.status != 200:
            raise _failure(deps, reply, advice)
        return answer_file.read_bytes().splitlines()  # noqa: ASYNC240 - a report
