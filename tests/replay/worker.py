"""A worker of a few lines for tests with real clients: HTTP/1.1 in reverse mode, answers as replay gives them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import h11

from calls.model import Body, Request
from replay.answer import Answer

type Answerer = Callable[[Request], Awaitable[Answer | None]]


@dataclass
class Worker:
    """Where clients connect, and what they sent."""

    origin: str
    answerer: Answerer
    asked: list[Request] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while (request := await self._request(connection, reader)) is not None:
                self.asked.append(request)
                answer = await self.answerer(request)
                assert answer is not None
                await self._send(connection, writer, answer)
                if answer.end != "complete":
                    break
                connection.start_next_cycle()
        finally:
            writer.close()

    async def _request(self, connection: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
        head: h11.Request | None = None
        data = b""
        while True:
            match connection.next_event():
                case h11.NEED_DATA:
                    connection.receive_data(await reader.read(65536))
                case h11.Request() as head:
                    pass
                case h11.Data(data=more):
                    data += bytes(more)
                case h11.EndOfMessage():
                    break
                case _:
                    return None
        assert head is not None
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers.raw_items())
        url = self.origin + head.target.decode()
        return Request(method=head.method.decode(), url=url, headers=headers, body=Body(data=data, size=len(data)))

    async def _send(self, connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        writer.write(connection.send(h11.Response(status_code=answer.status, headers=headers)) or b"")
        for piece in answer.pieces:
            writer.write(connection.send(h11.Data(data=piece.data)) or b"")
            await writer.drain()
        if answer.end == "complete":
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            await writer.drain()


@contextmanager
def open_worker(origin: str, answerer: Answerer) -> Iterator[Worker]:
    """A worker on a loop of its own, so that blocking clients can use it."""
    worker = Worker(origin, answerer)
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
        worker.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        server.close_clients()  # type: ignore[attr-defined] # since 3.13, which runs the tests
        await server.wait_closed()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield worker
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
