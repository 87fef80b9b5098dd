"""Bound what connections to the API may hold before they have shown a token: files, and memory for the heads of requests.

The store server needs files for spools and Postgres. uvicorn limits neither the number of connections nor how long or how large a head is.
"""

import asyncio
import resource
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD: Final = 64 << 10
"""Bytes of a head."""

HEAD_TIMEOUT: Final = 30.0
"""Seconds that a head may take, and the rest of a body that nobody reads."""

MOST_CONNECTIONS: Final = 4096
RESERVED_FILES: Final = 256
"""Files for all but connections and what their requests open."""


def connection_limit() -> int:
    """Return how many connections may be open at once. Each is a file, and its answer may be one, too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max((files - min(RESERVED_FILES, files // 2)) // 2, 1))


class HeadTooLarge(Exception):
    """The head of a request has no end, or not soon enough."""


class ApiConnection(HttpToolsProtocol):
    """A connection to the API. While there are too many, the one that has waited longest for a head makes room for a new one."""

    def __init__(self, *, waiting: "dict[ApiConnection, None]", limit: int, **options: Any) -> None:
        """`waiting` has the connections that owe a head, the oldest first."""
        super().__init__(**options)
        self._waiting = waiting
        self._limit = limit
        self._timer: asyncio.TimerHandle | None = None
        self._open_requests = 0
        """Requests whose heads have come and whose answers are not complete."""

        self._head_size = 0
        self._unfinished_size = 0
        """Bytes that the parser holds because no field or piece of a body ends in them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's declares it so
        """Accept the connection, at the cost of another one if there are too many."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self._limit:
            oldest = next(iter(self._waiting))
            # At once: it is lost in a later turn of the event loop, and others may arrive before.
            oldest._end_wait()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_wait()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and see whether it is enough, or too much."""
        self._unfinished_size += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unfinished_size > LARGEST_HEAD + len(data):
            self.send_400_response("The head of the request is too large.")
        elif not self._open_requests:
            self._await_head()
        else:
            self._end_wait()

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._head_size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a piece of the target."""
        self._count_field(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field, of the head or behind a body."""
        self._count_field(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the head: it is answered."""
        self._open_requests += 1
        self._unfinished_size = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._unfinished_size = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """End the answer: nobody reads what is left of the request."""
        self._open_requests -= 1
        super().on_response_complete()

    def _count_field(self, size: int) -> None:
        self._unfinished_size = 0
        self._head_size += size
        if self._head_size > LARGEST_HEAD:
            raise HeadTooLarge

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.abort)
            self._waiting[self] = None

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._waiting.pop(self, None)
