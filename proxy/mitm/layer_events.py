"""Events and commands between Playhead's layers, in mitmproxy's form: events go to streams, commands to sockets."""

from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Any

from h2.errors import ErrorCodes
from mitmproxy import http
from mitmproxy.connection import Connection
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import GetHttpConnection
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import ResponseProtocolError


@dataclass
class InterimResponse(HttpEvent):
    """A 1xx response other than 101. It is forwarded at once, not recorded. mitmproxy takes it for the final response."""

    response: http.Response


@dataclass
class UpstreamMalformed(ResponseProtocolError):
    """The upstream's response is malformed. `message` says what is wrong, and quotes nothing of it."""


@dataclass
class UpstreamReset(ResponseProtocolError):
    """The upstream reset the stream, or a GOAWAY says that it will not process it."""

    error_code: int = ErrorCodes.INTERNAL_ERROR
    """The HTTP/2 error code, with which the client's stream is reset, too."""


@dataclass
class PeerFull(HttpEvent):
    """The peer does not take the data of this stream fast enough: too much is queued."""

    from_client: bool


@dataclass
class PeerReady(HttpEvent):
    """The peer has taken the queued data of this stream."""

    from_client: bool


@dataclass
class PauseStream(HttpEvent):
    """To a connection: stop receiving data of this stream."""


@dataclass
class ResumeStream(HttpEvent):
    """To a connection: receive data of this stream again."""


class FreshHttpConnection(GetHttpConnection):
    """To the HTTP layer: find or open an upstream connection that takes new requests."""

    retiring: Container[Connection] = ()
    """The connections that do not. The HTTP layer knows them."""

    def connection_spec_matches(self, connection: Connection) -> bool:
        """Return whether the connection leads where the request goes, and takes it."""
        return connection not in self.retiring and super().connection_spec_matches(connection)


class SetReading(commands.Command):
    """To the sockets: pause or resume reading from this connection."""

    def __init__(self, connection: Connection, *, on: bool) -> None:
        self.connection = connection
        self.on = on


class SetHeadTimer(commands.Command):
    """To the sockets: start or stop the time limit for the head of a request."""

    def __init__(self, connection: Connection, *, on: bool) -> None:
        self.connection = connection
        self.on = on


@dataclass
class Await(commands.StartHook):  # type: ignore[no-untyped-call]
    """To the event loop: run `work` while the stream waits, and store its result."""

    name = "playhead_await"
    work: Callable[[], Awaitable[Any]]
    result: Any = None
