"""HTTP/2 upstreams, and clients that reach them through a worker under test."""

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
async def open_h2_upstream(
    handler: Handler, *, acknowledge: bool = True, upstream: Upstream | None = None
) -> AsyncIterator[Upstream]:
    """Serve HTTP/2 on localhost."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(Peer(reader, writer, client=False, acknowledge=acknowledge))
        except StreamBroken:
            return

    async with serving(serve, tls=upstream_tls("localhost", alpn=("h2",)), upstream=upstream) as listening:
        yield listening


@asynccontextmanager
async def open_h2_client(
    worker: Worker, upstream: Upstream, *, acknowledge: bool = True
) -> AsyncIterator[tuple[Peer, str]]:
    """Connect an HTTP/2 client to the upstream through the worker."""
    authority = f"localhost:{upstream.port}"
    reader, writer = await connect_through(worker, authority, alpn=("h2",))
    try:
        yield Peer(reader, writer, client=True, acknowledge=acknowledge), authority
    finally:
        writer.close()


def reach_upstreams(*upstreams: Upstream) -> dict[str, Any]:
    """Return the settings of a worker that may connect to these upstreams."""
    return {"allow_private": True, "connect_ports": tuple(upstream.port for upstream in upstreams)}


@asynccontextmanager
async def open_h2_pair(
    directory: Path, handler: Handler, recorder: MemoryRecorder | None = None
) -> AsyncIterator[tuple[Peer, str]]:
    """Connect an HTTP/2 client to an HTTP/2 upstream through a worker."""
    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(directory, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        yield peer, authority


async def answer_all(peer: Peer) -> None:
    """Answer every request in the same way."""
    while True:
        stream, _ = await peer.request()
        peer.respond(stream, OK, [b"ok"])
