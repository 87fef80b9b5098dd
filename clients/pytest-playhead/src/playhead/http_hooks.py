"""Add the current run to each request of Python's HTTP clients, when it is written and its connection is known.

So several runs may share a connection pool, and a host that is reached without Playhead never gets the header.

- `http.client`: urllib3, requests, botocore, urllib, httplib2.
- `httpcore`: httpx, and the SDKs of OpenAI, Anthropic, Google, Mistral and others.
- `aiohttp`.
- `websockets`, for its handshakes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

from playhead.binding import current_run
from playhead.proxied import goes_to_playhead, has_playhead_certificate

if TYPE_CHECKING:
    from types import ModuleType

HEADER = "X-Playhead-Bound-Run"
"""The header that names the run of a request. It takes precedence over the credentials of the connection."""

_HEADER_BYTES = HEADER.encode()
_RUN_HEADERS = (_HEADER_BYTES.lower(), b"x-playhead-run")
"""Headers with which a request already names a run."""


def hook_http_client(module: ModuleType) -> None:
    """Add the header when the head of a request is complete. CONNECT requests do not use the hooked method."""
    connection = module.HTTPConnection
    endheaders, putheader = connection.endheaders, connection.putheader

    @functools.wraps(endheaders)
    def with_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is not None and not any(line.partition(b":")[0].lower() in _RUN_HEADERS for line in self._buffer):
            tls = self.sock if hasattr(self.sock, "getpeercert") else None
            if self.sock is None:
                # The original connects only when it sends.
                self.connect()
                tls = self.sock if hasattr(self.sock, "getpeercert") else None
            if goes_to_playhead(tls, self.host, self.port):
                putheader(self, HEADER, run)
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
    run = current_run()
    if run is None or request.method == b"CONNECT" or any(name.lower() in _RUN_HEADERS for name, _ in request.headers):
        return request.headers
    # If another version stores these elsewhere, the request must not fail for it.
    stream, origin = getattr(connection, "_network_stream", None), getattr(connection, "_origin", None)
    if stream is None or origin is None:
        return request.headers
    if not goes_to_playhead(stream.get_extra_info("ssl_object"), origin.host, origin.port):
        return request.headers
    return [*request.headers, (_HEADER_BYTES, run.encode())]


def hook_aiohttp(module: ModuleType) -> None:
    """Hook `aiohttp.client_reqrep`."""
    request = module.ClientRequest
    send = request.send

    @functools.wraps(send)
    async def with_run(self: Any, conn: Any) -> Any:
        run = current_run()
        if run is None or self.method == "CONNECT" or _names_run(self.headers) or not _is_proxied(self, conn):
            return await send(self, conn)
        self.headers[HEADER] = run
        try:
            return await send(self, conn)
        finally:
            self.headers.pop(HEADER, None)

    request.send = with_run


def _names_run(headers: Any) -> bool:
    return any(name.decode() in headers for name in _RUN_HEADERS)  # a multidict is case-insensitive


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
        run = current_run()
        if run is None:
            return headers
        tls = self.transport.get_extra_info("ssl_object") if is_async else None
        if not (has_playhead_certificate(tls) if is_async else self.ends_at_playhead):
            return headers
        fields = list(headers.items() if hasattr(headers, "items") else headers or ())
        return fields if any(name.lower().encode() in _RUN_HEADERS for name, _ in fields) else [*fields, (HEADER, run)]

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
