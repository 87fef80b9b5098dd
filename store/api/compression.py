"""Compress responses for browsers and other clients that accept gzip.

The timeline of a long run is two megabytes of JSON, which over a slow line takes most of a minute. Programs of our own ask for no encoding:
on one machine compressing costs more than it saves.

Only answers to GET are compressed. None of them holds a credential, which the length of a compressed answer could give away.
"""

import asyncio
import zlib
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST: Final = 4 << 10
"""Bytes of the smallest body that is compressed: a smaller one fits into a few packets anyway."""

TYPES: Final = ("application/json", "text/javascript", "text/css", "text/html", "image/svg+xml")
"""The media types that are compressed. Recorded bodies have another one: their bytes are served as they are."""

LEVEL: Final = 1
"""The fastest level: JSON of the API becomes a tenth or less with it."""

_GZIP: Final = 16 + zlib.MAX_WBITS


class Compression:
    """ASGI middleware that compresses each large body that a route gives as a whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and compress its response if the client accepts that."""
        if scope["type"] == "http" and scope["method"] == "GET" and accepts_gzip(Headers(scope=scope)):
            send = _Compressor(send).accept
        await self._app(scope, receive, send)


def accepts_gzip(headers: Headers) -> bool:
    """Whether the client names gzip among the encodings that it accepts (RFC 9110 12.5.3)."""
    for one in headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            return weight.strip().removeprefix("q=").strip("0. ") != "" or not weight.strip()
    return False


class _Compressor:
    """One response. Its head waits for its first piece of body, which shows whether the body is whole."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None

    async def accept(self, message: Message) -> None:
        """Pass on a message of the route, compressed where that is worth it."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            headers = MutableHeaders(raw=list(head["headers"]))
            if _is_compressible(headers):
                headers.add_vary_header("accept-encoding")
                body = message.get("body", b"")
                if len(body) >= LEAST and not message.get("more_body", False):
                    # zlib lets other threads run, so a large body holds up nobody.
                    packed = await asyncio.to_thread(zlib.compress, body, LEVEL, _GZIP)
                    headers["content-encoding"] = "gzip"
                    headers["content-length"] = str(len(packed))
                    message = {**message, "body": packed}
            await self._send({**head, "headers": headers.raw})
        await self._send(message)


def _is_compressible(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0] in TYPES and "content-encoding" not in headers
