"""The events and commands between our layers, in mitmproxy's form: events go to streams, commands to sockets."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mitmproxy import http
from mitmproxy.connection import Connection
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import ResponseProtocolError


@dataclass
class Informational(HttpEvent):
    """A 1xx response other than 101: passed on at once, never recorded. mitmproxy takes it for the final answer."""

    response: http.Response


@dataclass
class UpstreamMalformed(ResponseProtocolError):
    """The upstream has not gone: what it says is no HTTP. `message` says what is wrong with it, and quotes nothing."""


@dataclass
class Full(HttpEvent):
    """A peer takes no more of this stream for now; what we send is piling up."""

    from_client: bool


@dataclass
class Room(HttpEvent):
    """The peer takes more again."""

    from_client: bool


@dataclass
class Hold(HttpEvent):
    """To a connection: take in no more of this stream."""


@dataclass
class Resume(HttpEvent):
    """To a connection: go on."""


class SetReading(commands.Command):
    """To the sockets: read from this connection, or stop reading."""

    def __init__(self, connection: Connection, *, on: bool) -> None:
        self.connection = connection
        self.on = on


class SetHeading(commands.Command):
    """To the sockets: this client is in the middle of a head, or is not any more."""

    def __init__(self, connection: Connection, *, on: bool) -> None:
        self.connection = connection
        self.on = on


@dataclass
class Await(commands.StartHook):  # type: ignore[no-untyped-call]
    """To the event loop: wait for this; the stream stands still until then, and finds what came of it in `result`."""

    name = "playhead_await"
    work: Callable[[], Awaitable[Any]]
    result: Any = None
