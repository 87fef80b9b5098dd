"""One end of an HTTP/2 connection: turn received bytes into events, and send data with flow control.

It uses ngh2 (libnghttp2 1.70) instead of h2. h2 is pure Python: on each side, one request costs it more than everything
else in the lane (measured: 160 µs against 7), and a large Huffman-coded head takes seconds. With `Configuration`,
libnghttp2 handles floods of SETTINGS, PING, CONTINUATION and RST_STREAM, and checks the size of heads, fields and
Content-Length. ngh2 is young (0.3, one maintainer): its defects are worked around here, and only `proxy/lane/h2` imports it.

Received data is acknowledged only once the other side of the exchange takes it. Flow control is per stream only (the
connection's window never limits), so that one stopped reader does not stop others; it holds at most `WINDOW` and `HIGH`.

Input is processed in slices (`receive_queue`). While any is left over, nothing more is read.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import ngh2

from proxy.lane.heads import Fields
from proxy.lane.receive_queue import FIRST_SLICE, FrameGroups, ReceiveQueue
from proxy.lane.tls import Tls

WINDOW: Final = 1 << 20
"""The receive window of one stream."""

ALL_WINDOWS: Final = 1 << 30

SEND_BYTES: Final = 256 << 10
"""Maximum bytes encoded and sent in one turn of the event loop. Megabytes of heads may be queued."""

HIGH: Final = 256 << 10
LOW: Final = 64 << 10

MAX_RESETS: Final = 10_000
"""Number of resets by this end after which a connection takes no new streams: with each reset in the middle of a received
frame, ngh2 loses up to 16 KiB of the connection's window."""

HEAD_BYTES: Final = 128 << 10
"""Maximum size of a request head. A larger one ends the client's connection."""

HEAD_FIELDS: Final = 1000

RESPONSE_HEAD_BYTES: Final = 1 << 20
"""Maximum size of a response head. It is generous, because a larger one ends a connection that other exchanges share."""

_CONFIGURATIONS: Final = {
    ngh2.Role.SERVER: ngh2.Configuration(
        auto_window_update=False,
        max_inbound_header_list_size=HEAD_BYTES,
        max_inbound_header_count=HEAD_FIELDS,
        max_send_header_block_length=2 * RESPONSE_HEAD_BYTES,
        max_continuations=16,
    ),
    ngh2.Role.CLIENT: ngh2.Configuration(
        auto_window_update=False,
        max_inbound_header_list_size=RESPONSE_HEAD_BYTES,
        max_inbound_header_count=10 * HEAD_FIELDS,
        max_send_header_block_length=2 * HEAD_BYTES,
        max_continuations=128,
    ),
}

# The event that reports a closed stream may not have been handled yet when more is sent on it.
_CLOSED_ERRORS: Final = (ngh2.StreamProtocolError, ngh2.ConnectionStateError, ngh2.ConnectionClosingError)


class Flow:
    """One stream: the state that client and upstream streams have in common."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.owed_bytes = 0
        """Bytes received while paused, to be acknowledged later."""

        self.is_paused = False
        self.is_lagging = False
        """Whether too much is queued to be sent."""

    def set_peer_full(self, *, is_full: bool) -> None:
        """Handle that the peer's window is used up and too much is queued, or that there is room again."""


class Wire(asyncio.Protocol):
    """One end of an HTTP/2 connection."""

    def __init__(
        self,
        role: ngh2.Role,
        settings: dict[ngh2.Setting, int],
        call_last: Callable[[Callable[[], None]], None],
        receive_queue: ReceiveQueue,
    ) -> None:
        self.is_gone = False
        self.is_retiring = False
        """Whether the connection takes no new streams."""

        self._call_last = call_last
        """Schedules a call at the end of this turn of the loop, so that all output is sent by one write, which is expensive."""

        self._settings = {ngh2.Setting.INITIAL_WINDOW_SIZE: WINDOW} | settings
        self._session = ngh2.Connection(role, _CONFIGURATIONS[role])
        self._transport: asyncio.Transport | Tls
        self._flows: dict[int, Any] = {}
        self._lagging: set[Flow] = set()
        self._pending_resets: dict[Flow, int] = {}
        """Streams to reset once their queued data is sent, with the error codes."""

        self._receive_queue = receive_queue
        self._frame_groups = FrameGroups(preface=role is ngh2.Role.SERVER)
        self._input = b""
        """The received data, processed up to `_processed`; empty when nothing is left over."""

        self._processed = 0
        self._is_queued = False
        """Whether input that is left over waits in the receive queue."""

        self._is_lost = False
        """Whether the peer disconnected while input was left over."""

        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._is_flush_planned = False
        self._is_blocked = False
        self._resets = 0
        self._handlers: dict[type[ngh2.Event], Callable[[Any], None]] = {
            ngh2.ConnectionClosed: lambda _: self._end(),
        }

    def begin(self, transport: "asyncio.Transport | Tls", data: bytes = b"") -> None:
        """Take over a transport, from which `data` was already read, and send the settings."""
        self._transport = transport
        transport.set_protocol(self)
        self._session.initiate_connection(self._settings)
        self._session.set_local_window_size(ALL_WINDOWS)
        self.push()
        if data:
            self.data_received(data)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self.is_gone:
            return
        self._input = self._input[self._processed :] + data if self._input else data
        self._processed = 0
        if self._is_queued:
            return
        if self.process_input(self._receive_queue.clock() + FIRST_SLICE):
            self._is_queued = True
            self._transport.pause_reading()
            self._receive_queue.add(self)

    def process_input(self, deadline: float) -> bool:
        """Process received data until the deadline at most. Return whether more is left."""
        try:
            self._process_groups(deadline)
        except ngh2.NGH2Error:
            # The peer violates the protocol or a limit.
            self._handle_events()
            self._end()
        self.push()
        if self._processed < len(self._input) and not self.is_gone:
            return True
        self._input, self._processed = b"", 0
        if self._is_queued:
            self._is_queued = False
            self._resume_reading()
        return False

    def _process_groups(self, deadline: float) -> None:
        data = self._input
        while self._processed < len(data) and not self.is_gone:
            start = self._processed
            self._processed = end = self._frame_groups.end_of_group(data, start)
            self._session.receive_data(data if end - start == len(data) else data[start:end])
            self._handle_events()
            if self._receive_queue.clock() >= deadline:
                return

    def _resume_reading(self) -> None:
        if self._is_lost:
            self._mark_lost()
        if not (self.is_gone or self._transport.is_closing()):
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        self._handle_disconnect()
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._handle_disconnect()

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self.push()

    def _handle_disconnect(self) -> None:
        """Handle a disconnect. Left-over input of a server is still processed; requests of a client need not start."""
        if self._is_queued and self._session.role is ngh2.Role.CLIENT:
            self._is_lost = self.is_retiring = True
        else:
            self._mark_lost()

    def _mark_lost(self) -> None:
        if not self.is_gone:
            self.is_gone = self.is_retiring = True
            self.handle_loss()

    def _end(self) -> None:
        """Send the remaining output and close."""
        if not self.is_gone:
            self._write()
            self._transport.close()
            self._mark_lost()

    def abort(self) -> None:
        """Close at once."""
        self.is_gone = self.is_retiring = True
        self._transport.abort()

    # For subclasses and streams

    def handle_loss(self) -> None:
        """Handle the loss of the connection with all its streams."""
        raise NotImplementedError

    def handle_fault(self, fault: BaseException, event: ngh2.Event | None = None) -> None:
        """Handle an internal error, in the handling of `event` if that is given."""
        raise NotImplementedError

    def send(self, flow: Flow, data: bytes, *, end: bool = False) -> None:
        """Send a piece of a body, in a frame of its own if the peer keeps up."""
        if not self.attempt(lambda: self._session.send_data(flow.number, data, end_stream=end)):
            return
        if not flow.is_lagging and self.queued_bytes(flow) > HIGH:
            flow.is_lagging = True
            self._lagging.add(flow)
            flow.set_peer_full(is_full=True)

    def end(self, flow: Flow, data: bytes, trailers: Fields) -> None:
        """Send the last piece of a body, and the trailers."""
        if not trailers:
            self.send(flow, data, end=True)
            return
        if data:
            self.send(flow, data)
        self.attempt(lambda: self._session.send_trailers(flow.number, trailers))

    def attempt(self, action: Callable[[], None]) -> bool:
        """Call `action`, which sends something on a stream. Return False if the stream is closed."""
        try:
            action()
        except _CLOSED_ERRORS:
            return False
        self.push()
        return True

    def reset(self, flow: Flow, code: int) -> None:
        """Reset a stream."""
        if flow.number not in self._flows or self.is_gone:
            return
        self._resets += 1
        self._session.reset_stream(flow.number, code)
        self.push()
        if self._resets > MAX_RESETS and not self.is_retiring:
            self.retire()

    def break_off(self, flow: Flow, code: int) -> None:
        """Reset a stream after its queued data is sent, which an immediate reset would discard."""
        if self.queued_bytes(flow):
            self._pending_resets[flow] = code
        else:
            self.reset(flow, code)

    def queued_bytes(self, flow: Flow) -> int:
        """Return the number of bytes queued on a stream."""
        return self._session.queued_body_size(flow.number)

    def retire(self) -> None:
        """Take no new streams, and close after the last one."""
        if self.is_gone or self.is_retiring:
            return
        self.is_retiring = True
        self._session.send_goaway()
        self.push()

    def set_paused(self, flow: Flow, *, is_paused: bool) -> None:
        """Stop acknowledging a stream's data, so that the peer sends no more than its window; or resume."""
        flow.is_paused = is_paused
        if not is_paused and flow.owed_bytes:
            owed, flow.owed_bytes = flow.owed_bytes, 0
            self._acknowledge_now(flow.number, owed)
            self.push()

    def push(self) -> None:
        """Encode pending output, and schedule the write."""
        if self.is_gone:
            return
        if not self._is_blocked and self._unsent_size < SEND_BYTES:
            try:
                if data := self._session.data_to_send(SEND_BYTES - self._unsent_size):
                    self._unsent.append(data)
                    self._unsent_size += len(data)
            except ngh2.ConnectionStateError:
                pass  # the session is closed, and its last output was sent
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._call_last(self._flush)

    def _flush(self) -> None:
        self._is_flush_planned = False
        if self.is_gone:
            return
        try:
            is_more_due = self._unsent_size >= SEND_BYTES
            self._write()
            self._handle_events()
            self._release_flows()
            if is_more_due:
                self.push()
        except Exception as fault:  # noqa: BLE001 - the calls of other connections come after this one
            self.handle_fault(fault)

    def _write(self) -> None:
        if self._unsent:
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent.clear()
            self._unsent_size = 0
            self._transport.write(data)

    def _release_flows(self) -> None:
        for flow in [flow for flow in self._lagging if self.queued_bytes(flow) <= LOW]:
            self._lagging.discard(flow)
            flow.is_lagging = False
            flow.set_peer_full(is_full=False)
        for flow in [flow for flow in self._pending_resets if not self.queued_bytes(flow)]:
            self.reset(flow, self._pending_resets.pop(flow))

    # Events

    def _handle_events(self) -> None:
        """Handle the events of the session."""
        while events := self._session.events():
            for event in events:
                hear = self._handlers.get(type(event))
                if hear is None:
                    continue
                try:
                    hear(event)
                except Exception as fault:  # noqa: BLE001 - an error in one stream must not end the others
                    self.handle_fault(fault, event)

    def acknowledge(self, number: int, size: int) -> None:
        """Acknowledge received data of a stream, once it is resumed if it is paused."""
        flow: Flow | None = self._flows.get(number)
        if flow is not None and flow.is_paused:
            flow.owed_bytes += size
        elif size:
            self._acknowledge_now(number, size)

    def _acknowledge_now(self, number: int, size: int) -> None:
        try:
            self._session.acknowledge_received_data(size, number)
        except ngh2.ConnectionStateError:
            pass  # the session is closing

    def forget(self, flow: Flow) -> None:
        """Forget a closed stream, and acknowledge what it owes, which also counts in the connection's window."""
        self._lagging.discard(flow)
        self._pending_resets.pop(flow, None)
        del self._flows[flow.number]
        self.set_paused(flow, is_paused=False)
