"""Either end of an HTTP/2 connection on real sockets, for tests that break the protocol or look at its details."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

type Fields = list[tuple[str, str]]


class StreamBroken(Exception):
    """The stream was reset, or the connection was closed."""


@dataclass
class ReceivedStream:
    """What was received on one stream."""

    headers: Fields = field(default_factory=list)
    interim: list[Fields] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    trailers: Fields = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


def _fields(headers: Any) -> Fields:
    """Return the fields as text, as the connection is configured."""
    return [(str(name), str(value)) for name, value in headers or ()]


class Peer:
    """One end of a connection. With `acknowledge` false it never enlarges its windows."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        client: bool,
        acknowledge: bool = True,
        window: int | None = None,
    ) -> None:
        self.reader, self.writer = reader, writer
        self.acknowledge = acknowledge
        self.streams: dict[int, ReceivedStream] = {}
        self.requests: deque[int] = deque()
        self.poured = 0
        self.pings = 0
        """How many pings of ours were answered."""

        config = h2.config.H2Configuration(
            client_side=client,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.conn = h2.connection.H2Connection(config)
        if window is not None:
            self.conn.local_settings[h2.settings.SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.conn.initiate_connection()
        self.flush()

    def flush(self) -> None:
        """Write pending output to the socket."""
        if data := self.conn.data_to_send():
            self.writer.write(data)

    async def step(self) -> None:
        """Read once, and process the events."""
        data = await self.reader.read(65536)
        if not data:
            raise StreamBroken("the connection is closed")
        for event in self.conn.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        self.pings += isinstance(event, h2.events.PingAckReceived)
        stream_id = getattr(event, "stream_id", None)
        if not stream_id:
            return
        heard = self.streams.setdefault(stream_id, ReceivedStream())
        match event:
            case h2.events.RequestReceived(headers=headers):
                heard.headers = _fields(headers)
                self.requests.append(stream_id)
            case h2.events.ResponseReceived(headers=headers):
                heard.headers = _fields(headers)
            case h2.events.InformationalResponseReceived(headers=headers):
                heard.interim.append(_fields(headers))
            case h2.events.TrailersReceived(headers=headers):
                heard.trailers = _fields(headers)
            case h2.events.DataReceived(data=data):
                if data:
                    heard.pieces.append(data)
                if self.acknowledge:
                    self.conn.acknowledge_received_data(event.flow_controlled_length, stream_id)
            case h2.events.StreamEnded():
                heard.ended = True
            case h2.events.StreamReset(error_code=code):
                heard.reset = int(code or 0)

    def begin(self, authority: str, path: str) -> int:
        """Send the head of a request whose body follows; return its stream."""
        stream_id = self.conn.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "https"), (":authority", authority), (":path", path)]
        self.conn.send_headers(stream_id, head)
        self.streams[stream_id] = ReceivedStream()
        self.flush()
        return stream_id

    def widen(self, stream_id: int) -> None:
        """Acknowledge all data from now on."""
        self.acknowledge = True
        self.conn.increment_flow_control_window(1 << 30)
        self.conn.increment_flow_control_window(1 << 30, stream_id)
        self.flush()

    def ask(
        self, url_authority: str, path: str, *, method: str = "GET", body: bytes = b"", extra: Fields | None = None
    ) -> int:
        """Send a request; return its stream."""
        stream_id = self.conn.get_next_available_stream_id()
        head = [
            (":method", method),
            (":scheme", "https"),
            (":authority", url_authority),
            (":path", path),
            *(extra or []),
        ]
        self.conn.send_headers(stream_id, head, end_stream=not body)
        self.streams[stream_id] = ReceivedStream()
        if body:
            self.conn.send_data(stream_id, body, end_stream=True)
        self.flush()
        return stream_id

    async def answer(self, stream_id: int) -> ReceivedStream:
        """Wait for the whole response."""
        heard = self.streams[stream_id]
        while not heard.ended:
            if heard.reset is not None:
                raise StreamBroken(f"stream reset with code {heard.reset}")
            await self.step()
        return heard

    async def request(self) -> tuple[int, ReceivedStream]:
        """Wait for the next whole request. One that is reset before its end is skipped."""
        while not (self.requests and self.streams[self.requests[0]].ended):
            if self.requests and self.streams[self.requests[0]].reset is not None:
                self.requests.popleft()
            else:
                await self.step()
        stream_id = self.requests.popleft()
        return stream_id, self.streams[stream_id]

    def respond(
        self, stream_id: int, headers: Fields, pieces: Iterable[bytes] = (), trailers: Fields | None = None
    ) -> None:
        """Send as much of a response as the windows allow now."""
        pieces = list(pieces)
        self.conn.send_headers(stream_id, headers, end_stream=not pieces and not trailers)
        for number, piece in enumerate(pieces, 1):
            self.conn.send_data(stream_id, piece, end_stream=number == len(pieces) and not trailers)
            self.flush()
        if trailers:
            self.conn.send_headers(stream_id, trailers, end_stream=True)
        self.flush()

    async def pour(self, stream_id: int, size: int, *, piece: int = 16384) -> None:
        """Send this many bytes as fast as the windows and the socket allow, then end the stream."""
        left = size
        while left:
            self.poured = size - left
            room = min(left, piece, self.conn.local_flow_control_window(stream_id), self.conn.max_outbound_frame_size)
            if room <= 0:
                await self.step()
                continue
            left -= room
            self.conn.send_data(stream_id, bytes(room), end_stream=not left)
            self.flush()
            await self.writer.drain()
