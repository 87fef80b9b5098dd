"""Add the current run, and the step of a framework, to each request of Python's HTTP clients, when it is written and its connection is known.

So several runs may share a connection pool, and a host that is reached without Playhead never gets the header.

- `http.client`: urllib3, requests, botocore, urllib, httplib2.
- `httpcore`: httpx, and the SDKs of OpenAI, Anthropic, Google, Mistral and others.
- `aiohttp`.
- `websockets`, for its handshakes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Optional

from playhead.binding import current_run
from playhead.proxied import goes_to_playhead, has_playhead_certificate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

HEADER = "X-Playhead-Bound-Run"
"""The header that names the run of a request. It takes precedence over the credentials of the connection."""

STEP_HEADER = "X-Playhead-Actor"
"""The header that names the step of a framework (`playhead.bridges`)."""

MOST_NAME = 200
"""Characters of the name of a step that are sent."""

_RUN_HEADERS = (HEADER.lower(), "x-playhead-run")
"""Headers with which a request already names a run."""

Namer = Callable[[], Optional[str]]
"""Returns the name of the step in which the code runs that asks."""

_namers: list[Namer] = []


def name_steps(namer: Namer) -> None:
    """Have requests name the step that this function returns."""
    if namer not in _namers:
        _namers.append(namer)


def current_step() -> str | None:
    """Return the name of the step in which this code runs, as a header can have it."""
    for namer in _namers:
        name = namer()
        if name:
            return "".join(each if " " <= each <= "~" else "_" for each in name[:MOST_NAME])
    return None


def _own_headers(present: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
    """Return the headers to add to a request; `present` returns the names of those it has, which stay as they are."""
    run, step = current_run(), current_step()
    if run is None and step is None:
        return []
    names = {name.lower() for name in present()}
    added = []
    if run is not None and names.isdisjoint(_RUN_HEADERS):
        added.append((HEADER, run))
    if step is not None and STEP_HEADER.lower() not in names:
        added.append((STEP_HEADER, step))
    return added


def hook_http_client(module: ModuleType) -> None:
    """Add the header when the head of a request is complete. CONNECT requests do not use the hooked method."""
    connection = module.HTTPConnection
    endheaders, putheader = connection.endheaders, connection.putheader

    @functools.wraps(endheaders)
    def with_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        added = _own_headers(lambda: (line.partition(b":")[0].decode("latin-1") for line in self._buffer))
        if added:
            tls = self.sock if hasattr(self.sock, "getpeercert") else None
            if self.sock is None:
                # The original connects only when it sends.
                self.connect()
                tls = self.sock if hasattr(self.sock, "getpeercert") else None
            if goes_to_playhead(tls, self.host, self.port):
                for name, value in added:
                    putheader(self, name, value)
        return endheaders(self, *args, **kwargs)

    connection.endheaders = with_run


def hook_httpcore(module: ModuleType) -> None:
    """Hook the connections of HTTP/1.1 and HTTP/2, synchronous and asynchronous."""
    for connection in (module.HTTP11Connection, module.HTTP2Connection):
        _hook_httpcore_connection(connection)
    for connection in (module.AsyncHTTP11Connection, module.AsyncHTTP2Connection):
        _hook_async_httpcore_connection(connection)


def _hook_httpcore_connection(connection: Any) -> None:
    if not _is_real(connection, "handle_request"):
        return
    handle = connection.handle_request

    @functools.wraps(handle)
    def with_run(self: Any, request: Any) -> Any:
        before = request.headers
        request.headers = _headers_with_run(self, request)
        try:
            return handle(self, request)
        finally:
            request.headers = before  # the pool may try another connection

    connection.handle_request = with_run


def _hook_async_httpcore_connection(connection: Any) -> None:
    if not _is_real(connection, "handle_async_request"):
        return
    handle = connection.handle_async_request

    @functools.wraps(handle)
    async def with_run(self: Any, request: Any) -> Any:
        before = request.headers
        request.headers = _headers_with_run(self, request)
        try:
            return await handle(self, request)
        finally:
            request.headers = before

    connection.handle_async_request = with_run


def _is_real(connection: Any, method: str) -> bool:
    """False for the placeholder class that httpcore has when the package `h2` is missing."""
    return method in vars(connection)


def _headers_with_run(connection: Any, request: Any) -> Any:
    added = _own_headers(lambda: (name.decode("latin-1") for name, _ in request.headers))
    if not added or request.method == b"CONNECT":
        return request.headers
    # If another version stores these elsewhere, the request must not fail for it.
    stream, origin = getattr(connection, "_network_stream", None), getattr(connection, "_origin", None)
    if stream is None or origin is None:
        return request.headers
    if not goes_to_playhead(stream.get_extra_info("ssl_object"), origin.host, origin.port):
        return request.headers
    return [*request.headers, *((name.encode(), value.encode()) for name, value in added)]


def hook_aiohttp(module: ModuleType) -> None:
    """Hook `aiohttp.client_reqrep`."""
    request = module.ClientRequest
    send = request.send

    @functools.wraps(send)
    async def with_run(self: Any, conn: Any) -> Any:
        added = _own_headers(lambda: self.headers)
        if not added or self.method == "CONNECT" or not _is_proxied(self, conn):
            return await send(self, conn)
        self.headers.extend(added)
        try:
            return await send(self, conn)
        finally:
            for name, _ in added:
                self.headers.pop(name, None)

    request.send = with_run


def _is_proxied(request: Any, connection: Any) -> bool:
    transport = connection.protocol.transport if connection.protocol is not None else None
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    address = request.proxy or request.url
    return goes_to_playhead(tls, address.host, address.port)


def hook_websockets(module: ModuleType) -> None:
    """Hook the handshakes of `websockets.asyncio.client` or `websockets.sync.client`."""
    connection = module.ClientConnection
    is_async = "asyncio" in module.__name__
    handshake = connection.handshake

    def with_header(self: Any, headers: Any) -> Any:
        fields = list(headers.items() if hasattr(headers, "items") else headers or ())
        added = _own_headers(lambda: (name for name, _ in fields))
        if not added:
            return headers
        tls = self.transport.get_extra_info("ssl_object") if is_async else None
        if not (has_playhead_certificate(tls) if is_async else self.ends_at_playhead):
            return headers
        return [*fields, *added]

    @functools.wraps(handshake)
    async def with_run_async(self: Any, additional_headers: Any = None, *args: Any, **kwargs: Any) -> Any:
        return await handshake(self, with_header(self, additional_headers), *args, **kwargs)

    @functools.wraps(handshake)
    def with_run(self: Any, additional_headers: Any = None, *args: Any, **kwargs: Any) -> Any:
        return handshake(self, with_header(self, additional_headers), *args, **kwargs)

    connection.handshake = with_run_async if is_async else with_run
    if is_async:
        return
    init = connection.__init__

    @functools.wraps(init)
    def read_certificate_first(self: Any, socket: Any, *args: Any, **kwargs: Any) -> None:
        # The original starts a thread that reads from the socket. While that thread takes in the session tickets
        # of TLS 1.3, OpenSSL says that the handshake is not finished, and the certificate cannot be read.
        self.ends_at_playhead = has_playhead_certificate(socket)
        init(self, socket, *args, **kwargs)

    connection.__init__ = read_certificate_first


HOOKS: dict[str, Callable[[Any], None]] = {
    "http.client": hook_http_client,
    "httpcore": hook_httpcore,
    "httpcore2": hook_httpcore,
    "aiohttp.client_reqrep": hook_aiohttp,
    "websockets.asyncio.client": hook_websockets,
    "websockets.sync.client": hook_websockets,
}
