"""Read the body of a request before its route runs.

A route that loads exchanges has one of a few turns (`spilled_answers`), and JSON is read from memory. So neither a client that sends its
body slowly nor one whose body does not end may get as far as a route.
"""

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.api.guard import is_tokenless
from store.api.problems import Problem

LARGEST: Final = 16 << 20
"""Bytes of a body."""

LARGEST_TOKENLESS: Final = 16 << 10
"""Bytes of a body that anybody may send, to log in."""

STALL_TIMEOUT: Final = 60.0
"""Seconds after which a client that sends nothing of its body is refused."""

WITH_BODIES: Final = ("POST", "PUT", "PATCH")
STREAMED: Final = "/v1/import"
"""The path whose route reads the body itself, into a file."""

STREAMS: Final = 4
"""Bodies that are read into files at the same time; others wait."""


class RequestBodyLimit:
    """ASGI middleware that reads bodies up to a limit, and gives them to routes as a whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._streams = asyncio.Semaphore(STREAMS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and run the app, or refuse the request."""
        if scope["type"] != "http" or scope["method"] not in WITH_BODIES:
            await self._app(scope, receive, send)
            return
        receive = _receive_in_time(receive)
        if scope["path"] == STREAMED:
            async with self._streams:
                await self._app(scope, receive, send)
            return
        limit = LARGEST_TOKENLESS if is_tokenless(scope["method"], scope["path"]) else LARGEST
        try:
            body = await _read_body(receive, _stated_size(scope), limit)
        except Problem as problem:
            await problem.response(scope["path"])(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _with_body(body, receive), send)


def _stated_size(scope: Scope) -> int:
    """Return the size of the body according to its header; 0 without one."""
    stated = Headers(scope=scope).get("content-length", "")
    return int(stated) if stated.isdecimal() else 0


async def _read_body(receive: Receive, stated_size: int, limit: int) -> bytes | None:
    """Return the whole body; None if the client has left. Raises a 408 and a 413."""
    _require_size(stated_size, limit)
    pieces: list[bytes] = []
    size, is_whole = 0, False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        _require_size(size, limit)
        is_whole = not message.get("more_body", False)
    return b"".join(pieces)


def _require_size(size: int, limit: int) -> None:
    if size > limit:
        detail = f"the body of the request is larger than {limit:,} bytes, the limit of this path: send less at a time"
        raise Problem(413, "too_large", detail)


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that has the body in one message, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body


def _receive_in_time(receive: Receive) -> Receive:
    """Wrap `receive` so that it raises a 408 while the rest of the body does not come."""
    is_whole = False

    async def receive_or_refuse() -> Message:
        nonlocal is_whole
        try:
            async with asyncio.timeout(None if is_whole else STALL_TIMEOUT):
                message = await receive()
        except TimeoutError:
            detail = f"nothing of the request's body has come for {STALL_TIMEOUT:g} s: send the request again"
            raise Problem(408, "request_timeout", detail, headers={"connection": "close"}) from None
        is_whole = not message.get("more_body", False)
        return message

    return receive_or_refuse
