"""One end of a connection of HTTP/2: received bytes become events, and what is sent waits until it is taken.

On ngh2, which is libnghttp2 1.70, and not on h2: that is Python throughout, and one request costs it more on each side than
all else that a lane does (measured: 160 µs against 7), a large Huffman-coded head even seconds. What libnghttp2 sees to,
by `Configuration`: floods of SETTINGS, PING, CONTINUATION and RST_STREAM, the size of heads, sound fields, content-length.
It is young (0.3, one maintainer): what it gets wrong is worked around here, and only the files `h2*` know it.

Windows open only as the other side takes. A window of ours is one stream's alone (the connection's is never the narrower
one), so that a reader who stops does not stop others; what he has under way is at most `WINDOW` and `HIGH`.

What was read is processed in slices (`receive_queue`); as long as something is left over nothing more is read.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import ngh2

from proxy.lane.heads import Fields
from proxy.lane.receive_queue import FIRST_SLICE, FrameGroups, ReceiveQueue
from proxy.lane.tls import Tls

WINDOW: Final = 1 << 20
"""What a sender may have under way on one stream."""

ALL_WINDOWS: Final = 1 << 30

SEND_BYTES: Final = 256 << 10
"""Bytes that are encoded and sent in one turn of the loop; heads of others may wait here by the megabyte."""

HIGH: Final = 256 << 10
LOW: Final = 64 << 10

RESETS: Final = 10_000
"""After so many resets of ours a connection takes no new streams: of a frame of which only a part has come, ngh2 forgets
what it took of the connection's window, 16 KiB at most."""

HEAD_BYTES: Final = 128 << 10
"""Of a request's head; a larger one ends its client's connection."""

HEAD_FIELDS: Final = 1000

ANSWER_BYTES: Final = 1 << 20
"""Of a response's head. One that is larger ends a connection on which others wait, so that there is room to spare."""

_CONFIGURATIONS: Final = {
    ngh2.Role.SERVER: ngh2.Configuration(
        auto_window_update=False,
        max_inbound_header_list_size=HEAD_BYTES,
        max_inbound_header_count=HEAD_FIELDS,
        max_send_header_block_length=2 * ANSWER_BYTES,
        max_continuations=16,
    ),
    ngh2.Role.CLIENT: ngh2.Configuration(
        auto_window_update=False,
        max_inbound_header_list_size=ANSWER_BYTES,
        max_inbound_header_count=10 * HEAD_FIELDS,
        max_send_header_block_length=2 * HEAD_BYTES,
        max_continuations=128,
    ),
}

# What is closed says so by an event, which may still be on its way when more is to be sent.
_CLOSED: Final = (ngh2.StreamProtocolError, ngh2.ConnectionStateError, ngh2.ConnectionClosingError)


class Flow:
    """One stream, as far as both ends are alike."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.owed = 0
        """What came while nobody took it."""

        self.held = False
        self.lagging = False
        """Whether more waits to be sent than should."""

    def room(self, *, full: bool) -> None:
        """The other side takes no more for now, or more again."""


class Wire(asyncio.Protocol):
    """One end of a connection."""

    def __init__(
        self,
        role: ngh2.Role,
        settings: dict[ngh2.Setting, int],
        at_last: Callable[[Callable[[], None]], None],
        receive_queue: ReceiveQueue,
    ) -> None:
        self.gone = False
        self.retiring = False
        """Whether it takes no new streams."""

        self.ragged = False
        self._at_last = at_last
        """Has something done when all that is to be sent in this turn of the loop is there: one write costs as much as all else."""

        self._settings = {ngh2.Setting.INITIAL_WINDOW_SIZE: WINDOW} | settings
        self._session = ngh2.Connection(role, _CONFIGURATIONS[role])
        self._transport: asyncio.Transport | Tls
        self._flows: dict[int, Any] = {}
        self._lagging: set[Flow] = set()
        self._breaking: dict[Flow, int] = {}
        """Streams that are reset once all is sent that is to be sent on them, and with what."""

        self._receive_queue = receive_queue
        self._frame_groups = FrameGroups(preface=role is ngh2.Role.SERVER)
        self._input = b""
        """What was read, and is processed as far as `_processed`; empty when nothing is left over."""

        self._processed = 0
        self._is_queued = False
        """Whether input is left over that waits for its turn."""

        self._is_lost = False
        """Whether the other side has left while input of its was left over."""

        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._due = False
        self._choked = False
        self._resets = 0
        self._hearing: dict[type[ngh2.Event], Callable[[Any], None]] = {
            ngh2.ConnectionClosed: lambda _: self._end(),
        }

    def begin(self, transport: "asyncio.Transport | Tls", data: bytes = b"") -> None:
        """Take over a connection, from which this was read already, and say what we want of it."""
        self._transport = transport
        transport.set_protocol(self)
        self._session.initiate_connection(self._settings)
        self._session.set_local_window_size(ALL_WINDOWS)
        self.push()
        if data:
            self.data_received(data)

    # What asyncio tells

    def data_received(self, data: bytes) -> None:
        if self.gone:
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
        """Process what was read, until this time at the longest; return whether more is left."""
        try:
            self._process_groups(deadline)
        except ngh2.NGH2Error:
            # It asks for too much, or is no HTTP/2 at all.
            self._hear()
            self._end()
        self.push()
        if self._processed < len(self._input) and not self.gone:
            return True
        self._input, self._processed = b"", 0
        if self._is_queued:
            self._is_queued = False
            self._read_on()
        return False

    def _process_groups(self, deadline: float) -> None:
        data = self._input
        while self._processed < len(data) and not self.gone:
            start = self._processed
            self._processed = end = self._frame_groups.end_of_group(data, start)
            self._session.receive_data(data if end - start == len(data) else data[start:end])
            self._hear()
            if self._receive_queue.clock() >= deadline:
                return

    def _read_on(self) -> None:
        if self._is_lost:
            self._lost()
        if not (self.gone or self._transport.is_closing()):
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        self._lost_behind_input()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.ragged = exc is not None
        self._lost_behind_input()

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self.push()

    def _lost_behind_input(self) -> None:
        """The other side has left. What a server said before that counts; what a client asked for need not begin."""
        if self._is_queued and self._session.role is ngh2.Role.CLIENT:
            self._is_lost = self.retiring = True
        else:
            self._lost()

    def _lost(self) -> None:
        if not self.gone:
            self.gone = self.retiring = True
            self.lost()

    def _end(self) -> None:
        """The protocol is over: what is left to say is said."""
        if not self.gone:
            self._write()
            self._transport.close()
            self._lost()

    def abort(self) -> None:
        """Close at once."""
        self.gone = self.retiring = True
        self._transport.abort()

    # For whoever stands on it

    def lost(self) -> None:
        """It is gone, with all its streams."""
        raise NotImplementedError

    def failed(self, fault: BaseException, event: ngh2.Event | None = None) -> None:
        """Something of ours has failed, with what came."""
        raise NotImplementedError

    def send(self, flow: Flow, data: bytes, *, end: bool = False) -> None:
        """Send a piece of a body, as a frame of its own as long as the other side keeps up."""
        if not self.attempt(lambda: self._session.send_data(flow.number, data, end_stream=end)):
            return
        if not flow.lagging and self.untaken(flow) > HIGH:
            flow.lagging = True
            self._lagging.add(flow)
            flow.room(full=True)

    def end(self, flow: Flow, data: bytes, trailers: Fields) -> None:
        """Send the last of a body, and what comes behind it."""
        if not trailers:
            self.send(flow, data, end=True)
            return
        if data:
            self.send(flow, data)
        self.attempt(lambda: self._session.send_trailers(flow.number, trailers))

    def attempt(self, say: Callable[[], None]) -> bool:
        """Say something on a stream, if that is still open."""
        try:
            say()
        except _CLOSED:
            return False
        self.push()
        return True

    def reset(self, flow: Flow, code: int) -> None:
        """Break a stream off."""
        if flow.number not in self._flows or self.gone:
            return
        self._resets += 1
        self._session.reset_stream(flow.number, code)
        self.push()
        if self._resets > RESETS and not self.retiring:
            self.retire()

    def break_off(self, flow: Flow, code: int) -> None:
        """Break a stream off behind what is still to be sent on it: a reset would overtake that."""
        if self.untaken(flow):
            self._breaking[flow] = code
        else:
            self.reset(flow, code)

    def untaken(self, flow: Flow) -> int:
        """How much waits to be sent on a stream."""
        return self._session.queued_body_size(flow.number)

    def retire(self) -> None:
        """Take no new streams, and close with the last one."""
        if self.gone or self.retiring:
            return
        self.retiring = True
        self._session.send_goaway()
        self.push()

    def hold(self, flow: Flow, *, full: bool) -> None:
        """Let the other side send no more than its window, or more again."""
        flow.held = full
        if not full and flow.owed:
            owed, flow.owed = flow.owed, 0
            self._took(flow.number, owed)
            self.push()

    def push(self) -> None:
        """Have what is to be sent written."""
        if self.gone:
            return
        if not self._choked and self._unsent_size < SEND_BYTES:
            try:
                if data := self._session.data_to_send(SEND_BYTES - self._unsent_size):
                    self._unsent.append(data)
                    self._unsent_size += len(data)
            except ngh2.ConnectionStateError:
                pass  # the last that it had to say is out already
        if not self._due:
            self._due = True
            self._at_last(self._flush)

    def _flush(self) -> None:
        self._due = False
        if self.gone:
            return
        try:
            is_more_due = self._unsent_size >= SEND_BYTES
            self._write()
            self._hear()
            self._relieve()
            if is_more_due:
                self.push()
        except Exception as fault:  # noqa: BLE001 - the guard: others wait behind this one
            self.failed(fault)

    def _write(self) -> None:
        if self._unsent:
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent.clear()
            self._unsent_size = 0
            self._transport.write(data)

    def _relieve(self) -> None:
        for flow in [flow for flow in self._lagging if self.untaken(flow) <= LOW]:
            self._lagging.discard(flow)
            flow.lagging = False
            flow.room(full=False)
        for flow in [flow for flow in self._breaking if not self.untaken(flow)]:
            self.reset(flow, self._breaking.pop(flow))

    # Hearing

    def _hear(self) -> None:
        """Look at what has come, and at what became of what was sent."""
        while events := self._session.events():
            for event in events:
                hear = self._hearing.get(type(event))
                if hear is None:
                    continue
                try:
                    hear(event)
                except Exception as fault:  # noqa: BLE001 - the guard: what fails for one stream is no other's business
                    self.failed(fault, event)

    def taken(self, number: int, size: int) -> None:
        """So much has come on a stream, and was handed on."""
        flow: Flow | None = self._flows.get(number)
        if flow is not None and flow.held:
            flow.owed += size
        elif size:
            self._took(number, size)

    def _took(self, number: int, size: int) -> None:
        try:
            self._session.acknowledge_received_data(size, number)
        except ngh2.ConnectionStateError:
            pass  # it is closing

    def forget(self, flow: Flow) -> None:
        """A stream is closed. What it owes is the connection's window, too."""
        self._lagging.discard(flow)
        self._breaking.pop(flow, None)
        del self._flows[flow.number]
        self.hold(flow, full=False)
