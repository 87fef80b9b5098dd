"""HTTP/2 through a worker under test: upstreams that speak it, and clients that ask them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.h2wire import Fields, Peer, StreamBroken
from tests.support.wire import MemoryRecorder, Upstream, Worker, connect_through, open_worker, serving, upstream_tls

OK: Fields = [(":status", "200"), ("x-a", "1")]

type Handler = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def speaking(
    handler: Handler, *, acknowledge: bool = True, upstream: Upstream | None = None
) -> AsyncIterator[Upstream]:
    """An HTTP/2 upstream for localhost."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(Peer(reader, writer, client=False, acknowledge=acknowledge))
        except StreamBroken:
            return

    async with serving(serve, tls=upstream_tls("localhost", alpn=("h2",)), upstream=upstream) as listening:
        yield listening


@asynccontextmanager
async def asking(worker: Worker, upstream: Upstream, *, acknowledge: bool = True) -> AsyncIterator[tuple[Peer, str]]:
    """An HTTP/2 client of that upstream, through the worker."""
    authority = f"localhost:{upstream.port}"
    reader, writer = await connect_through(worker, authority, alpn=("h2",))
    try:
        yield Peer(reader, writer, client=True, acknowledge=acknowledge), authority
    finally:
        writer.close()


def reaching(*upstreams: Upstream) -> dict[str, Any]:
    """A worker that may reach these."""
    return {"allow_private": True, "connect_ports": tuple(upstream.port for upstream in upstreams)}


@asynccontextmanager
async def conversing(
    directory: Path, handler: Handler, recorder: MemoryRecorder | None = None
) -> AsyncIterator[tuple[Peer, str]]:
    """An HTTP/2 client of an HTTP/2 upstream, through a worker between them."""
    async with (
        speaking(handler) as upstream,
        open_worker(directory, recorder, **reaching(upstream)) as worker,
        asking(worker, upstream) as (peer, authority),
    ):
        yield peer, authority


async def answer_all(peer: Peer) -> None:
    """An upstream that answers whatever it is asked."""
    while True:
        stream, _ = await peer.request()
        peer.respond(stream, OK, [b"ok"])
