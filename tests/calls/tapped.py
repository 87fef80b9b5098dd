"""What an HTTP client of the tests sends and gets, as exchanges of this room."""

from collections.abc import AsyncIterator

import httpx

from calls.model import Body, Chunk, Exchange, Request, Response


class Tap(httpx.AsyncBaseTransport):
    """A transport that keeps what passes through it."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self._passed: list[tuple[Request, httpx.Response, list[bytes]]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request on, and keep it and its answer."""
        data = await request.aread()
        response = await self._inner.handle_async_request(request)
        pieces: list[bytes] = []
        asked = Request(
            method=request.method,
            url=str(request.url),
            headers=tuple(request.headers.multi_items()),
            body=Body(data=data, size=len(data)),
        )
        self._passed.append((asked, response, pieces))
        kept = _RecordedStream(response, pieces)
        return httpx.Response(response.status_code, headers=response.headers, stream=kept)

    @property
    def exchanges(self) -> list[Exchange]:
        """All that passed, in order."""
        return [_exchange(*one) for one in self._passed]


class _RecordedStream(httpx.AsyncByteStream):
    def __init__(self, response: httpx.Response, pieces: list[bytes]) -> None:
        self._response, self._pieces = response, pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._response.stream, httpx.AsyncByteStream)
        async for piece in self._response.stream:
            self._pieces.append(piece)
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()


def _exchange(request: Request, response: httpx.Response, pieces: list[bytes]) -> Exchange:
    data = b"".join(pieces)
    ends = [sum(map(len, pieces[:place])) for place in range(len(pieces))]
    chunks = tuple(Chunk(0, start, len(piece)) for start, piece in zip(ends, pieces, strict=True))
    answered = Response(
        status=response.status_code,
        headers=tuple(response.headers.multi_items()),
        body=Body(data=data, chunks=chunks, size=len(data)),
    )
    return Exchange(
        id="0198c1d2-0000-7000-8000-000000000000",
        run="run",
        request=request,
        response=answered,
        outcome="completed",
        started_at=0,
        first_byte_at=0,
        ended_at=1,
    )
