"""Keep large responses in files until their clients have read them, so that slow clients take no memory.

A route ends when its response is made, however slowly the client reads: then its memory, its connection to the database
and its turn are free. A turn is the right to run a route that loads exchanges; there are only a few.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.large.memory import trim_heap

BUFFER_SIZE: Final = 64 << 10
"""Bytes of a response that are buffered in memory for its client."""

PIECE: Final = 64 << 10

DISK_LIMIT: Final = 4 << 30
"""Bytes of all responses in files; beyond them, a route waits until clients have read, or their connections are dropped."""

STALL_TIMEOUT: Final = 60.0
"""Seconds after which the connection of a client that reads nothing is dropped."""

TURNS: Final = 4
"""Routes that may hold bodies in memory at the same time."""

HEAVY_ROUTES: Final = ("/v1/calls", "/v1/exchanges", "/v1/runs", "/v1/import")
"""The paths of these routes."""

ENDLESS: Final = "/v1/events"
"""The path whose response has no end."""

LARGEST_KEPT_BODY: Final = 1 << 20
"""Bytes of a request body that is kept, so that a helper process can answer the request again."""

YIELD_TURN: Final = "playhead.pause"
"""Scope key: a context manager that gives up the turn for its duration."""

SETTLED: Final = "playhead.settled"
"""Scope key: whether everything acknowledged is stored; only where the request waited for it."""

BODY: Final = "playhead.body"
"""Scope key: the request's body; None if it is large."""


class Spill:
    """ASGI middleware that accepts responses as fast as the routes make them and sends them as fast as the clients read."""

    def __init__(self, app: ASGIApp, *, directory: Path | None = None) -> None:
        self._app = app
        self._directory = directory
        self._turns = asyncio.Semaphore(TURNS)
        self._room = DISK_LIMIT
        self._room_changed = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and send its response beside it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == ENDLESS:
            # Made as fast as its client reads, and never longer in memory than that takes.
            await self._app(scope, receive, _limited_send(send))
            return
        outlet = _Outlet(self, send)
        scope[BODY] = bytearray()
        fault: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                pumping = group.create_task(outlet.pump())
                try:
                    async with self._hold_turn(scope):
                        await self._app(scope, _remember_body(scope, receive), outlet.accept)
                except Exception as error:  # noqa: BLE001 - raised again when its response has been sent
                    fault = error
                finally:
                    outlet.finish()
                await pumping
        except* StalledReader:
            pass  # the connection is dropped: there is no client to report it to
        finally:
            await outlet.close()
        if fault is not None:
            raise fault

    @contextlib.asynccontextmanager
    async def _hold_turn(self, scope: Scope) -> AsyncIterator[None]:
        if not scope["path"].startswith(HEAVY_ROUTES):
            yield
            return
        await self._turns.acquire()

        @contextlib.asynccontextmanager
        async def pause() -> AsyncIterator[None]:
            self._turns.release()
            try:
                yield
            finally:
                await self._turns.acquire()

        scope[YIELD_TURN] = pause
        try:
            yield
        finally:
            self._turns.release()

    def open_file(self) -> IO[bytes]:
        """Open an unnamed temporary file."""
        return tempfile.TemporaryFile(buffering=0, dir=self._directory)

    async def reserve_room(self, size: int) -> None:
        """Wait until there is room on disk, and take it."""
        async with self._room_changed:
            await self._room_changed.wait_for(lambda: size <= self._room)
            self._room -= size

    async def release_room(self, size: int) -> None:
        """Give back room that was reserved."""
        async with self._room_changed:
            self._room += size
            self._room_changed.notify_all()


def _limited_send(send: Send) -> Send:
    """Wrap `send` so that a client that reads nothing for too long is dropped."""

    async def send_or_drop(message: Message) -> None:
        try:
            async with asyncio.timeout(STALL_TIMEOUT):
                await send(message)
        except TimeoutError:
            raise StalledReader from None

    return send_or_drop


class StalledReader(Exception):
    """The client has read nothing for too long."""


def _remember_body(scope: Scope, receive: Receive) -> Receive:
    """Wrap `receive` to keep a small body in the scope."""

    async def receive_and_remember() -> Message:
        message = await receive()
        body_so_far = scope[BODY]
        if message["type"] == "http.request" and body_so_far is not None:
            body_so_far += message.get("body", b"")
            if len(body_so_far) > LARGEST_KEPT_BODY:
                scope[BODY] = None
        return message

    return receive_and_remember


class _Outlet:
    """One response on its way to the client: what the client has not read yet is in memory up to a limit, then in a file."""

    def __init__(self, spill: Spill, send: Send) -> None:
        self._spill = spill
        self._send = send
        self._head: Message | None = None
        self._buffer: list[bytes] = []
        self._buffered_size = 0
        self._file: IO[bytes] | None = None
        self._written = self._read = 0
        self._more = asyncio.Event()
        self._is_over = self._is_whole = False

    async def accept(self, message: Message) -> None:
        """Accept a message of the route."""
        if message["type"] == "http.response.start":
            self._head = message
        elif body := message.get("body", b""):
            await self._store_piece(body)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_whole = True
        self._more.set()

    async def _store_piece(self, body: bytes) -> None:
        if self._file is None and self._buffered_size + len(body) <= BUFFER_SIZE:
            self._buffer.append(body)
            self._buffered_size += len(body)
            return
        if self._file is None:
            self._file = self._spill.open_file()
        await self._spill.reserve_room(len(body))
        await asyncio.to_thread(_write, self._file, body, self._written)
        self._written += len(body)

    def finish(self) -> None:
        """Note that the route has ended. If its response is incomplete, no last message is sent, so that the client sees it."""
        self._is_over = True
        self._more.set()

    async def pump(self) -> None:
        """Send to the client until the route has ended and everything is sent. Raises StalledReader."""
        is_sent = False
        while True:
            await self._more.wait()
            self._more.clear()
            if self._head is not None and not is_sent:
                is_sent = True
                await self._send_message(self._head)
            while piece := await self._next():
                await self._send_message({"type": "http.response.body", "body": piece, "more_body": True})
            if self._is_over and not self._buffer and self._read == self._written:
                if self._is_whole:
                    await self._send_message({"type": "http.response.body", "body": b"", "more_body": False})
                return

    async def _next(self) -> bytes:
        if self._buffer:
            pieces, self._buffer, self._buffered_size = b"".join(self._buffer), [], 0
            return pieces
        if self._file is None or self._read == self._written:
            return b""
        piece = await asyncio.to_thread(os.pread, self._file.fileno(), PIECE, self._read)
        self._read += len(piece)
        return piece

    async def _send_message(self, message: Message) -> None:
        try:
            async with asyncio.timeout(STALL_TIMEOUT):
                await self._send(message)
        except TimeoutError:
            raise StalledReader from None

    async def close(self) -> None:
        """Close the file and release its room."""
        if self._file is not None:
            self._file.close()
            await self._spill.release_room(self._written)
            if self._written > 8 * BUFFER_SIZE:
                trim_heap()


def _write(open_file: IO[bytes], body: bytes, at: int) -> None:
    rest = memoryview(body)
    while rest:
        count = os.pwrite(open_file.fileno(), rest, at)
        rest, at = rest[count:], at + count
