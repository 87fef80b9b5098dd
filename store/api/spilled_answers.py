"""Keep large responses in files until their readers have taken them, so that slow readers take no memory.

A route's work is over when its answer is made, however slowly that is read: then its memory, its connection to the
database and its turn are free. Only so many routes that open exchanges work at once.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.large.memory import trim

BUFFERED: Final = 64 << 10
"""Bytes of an answer that are held in memory for its reader."""

PIECE: Final = 64 << 10

ON_DISK: Final = 4 << 30
"""Bytes of all answers that wait in files; more are waited for, and then refused."""

STALLED: Final = 60.0
"""Seconds after which a reader that takes nothing is given up."""

TURNS: Final = 4
"""Routes that may hold bodies in memory at the same time."""

HEAVY: Final = ("/v1/calls", "/v1/exchanges", "/v1/runs", "/v1/import")
"""Where such routes are."""

KEPT: Final = 1 << 20
"""Bytes of a request's body that are kept, so that a helper process can answer it again."""

PAUSE: Final = "playhead.pause"
"""In a scope: gives the turn back for a while."""

SETTLED: Final = "playhead.settled"
"""In a scope: whether everything acknowledged is stored, where that was waited for."""

BODY: Final = "playhead.body"
"""In a scope: the request's body, where it is small."""


class Spill:
    """ASGI middleware: takes answers from the routes as fast as they come, and gives them to clients as fast as they read."""

    def __init__(self, app: ASGIApp, *, directory: Path | None = None) -> None:
        self._app = app
        self._directory = directory
        self._turns = asyncio.Semaphore(TURNS)
        self._room = ON_DISK
        self._freed = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outlet = _Outlet(self, send)
        scope[BODY] = bytearray()
        fault: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                pumping = group.create_task(outlet.pump())
                try:
                    async with self._turn(scope):
                        await self._app(scope, _kept(scope, receive), outlet.take)
                except Exception as error:  # noqa: BLE001 - raised again when its answer has reached the client
                    fault = error
                finally:
                    outlet.end()
                await pumping
        except* StalledReader:
            pass  # it has been given up, and there is nobody to be told
        finally:
            await outlet.close()
        if fault is not None:
            raise fault

    @contextlib.asynccontextmanager
    async def _turn(self, scope: Scope) -> AsyncIterator[None]:
        if not scope["path"].startswith(HEAVY):
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

        scope[PAUSE] = pause
        try:
            yield
        finally:
            self._turns.release()

    def file(self) -> IO[bytes]:
        """A file without a name."""
        return tempfile.TemporaryFile(buffering=0, dir=self._directory)

    async def room(self, size: int) -> None:
        """Wait for room on disk: others give it back as they are read, or given up."""
        async with self._freed:
            await self._freed.wait_for(lambda: size <= self._room)
            self._room -= size

    async def give_room(self, size: int) -> None:
        """Give it back."""
        async with self._freed:
            self._room += size
            self._freed.notify_all()


class StalledReader(Exception):
    """A client takes nothing of its answer."""


def _kept(scope: Scope, receive: Receive) -> Receive:
    """The same, and a small body is kept in the scope."""

    async def keeping() -> Message:
        message = await receive()
        kept = scope[BODY]
        if message["type"] == "http.request" and kept is not None:
            kept += message.get("body", b"")
            if len(kept) > KEPT:
                scope[BODY] = None
        return message

    return keeping


class _Outlet:
    """One answer on its way: what the reader has not taken yet lies in memory up to a limit, and behind that in a file."""

    def __init__(self, spill: Spill, send: Send) -> None:
        self._spill = spill
        self._send = send
        self._head: Message | None = None
        self._waiting: list[bytes] = []
        self._held = 0
        self._file: IO[bytes] | None = None
        self._written = self._read = 0
        self._more = asyncio.Event()
        self._is_over = self._is_whole = False

    async def take(self, message: Message) -> None:
        """Take a message of the route."""
        if message["type"] == "http.response.start":
            self._head = message
        elif body := message.get("body", b""):
            await self._put(body)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_whole = True
        self._more.set()

    async def _put(self, body: bytes) -> None:
        if self._file is None and self._held + len(body) <= BUFFERED:
            self._waiting.append(body)
            self._held += len(body)
            return
        if self._file is None:
            self._file = self._spill.file()
        await self._spill.room(len(body))
        await asyncio.to_thread(_write, self._file, body, self._written)
        self._written += len(body)

    def end(self) -> None:
        """The route is over. An answer that is not whole is left unfinished: so its client sees that it broke off."""
        self._is_over = True
        self._more.set()

    async def pump(self) -> None:
        """Give the client what there is, until the route is over and all is given. Raises StalledReader."""
        is_sent = False
        while True:
            await self._more.wait()
            self._more.clear()
            if self._head is not None and not is_sent:
                is_sent = True
                await self._given(self._head)
            while piece := await self._next():
                await self._given({"type": "http.response.body", "body": piece, "more_body": True})
            if self._is_over and not self._waiting and self._read == self._written:
                if self._is_whole:
                    await self._given({"type": "http.response.body", "body": b"", "more_body": False})
                return

    async def _next(self) -> bytes:
        if self._waiting:
            pieces, self._waiting, self._held = b"".join(self._waiting), [], 0
            return pieces
        if self._file is None or self._read == self._written:
            return b""
        piece = await asyncio.to_thread(os.pread, self._file.fileno(), PIECE, self._read)
        self._read += len(piece)
        return piece

    async def _given(self, message: Message) -> None:
        try:
            async with asyncio.timeout(STALLED):
                await self._send(message)
        except TimeoutError:
            raise StalledReader from None

    async def close(self) -> None:
        """Give back what it took."""
        if self._file is not None:
            self._file.close()
            await self._spill.give_room(self._written)
            if self._written > 8 * BUFFERED:
                trim()


def _write(file: IO[bytes], body: bytes, at: int) -> None:
    rest = memoryview(body)
    while rest:
        count = os.pwrite(file.fileno(), rest, at)
        rest, at = rest[count:], at + count
