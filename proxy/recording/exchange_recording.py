"""Record one exchange: redact it, and write its events to the spool.

Nothing here raises for the world's faults: the wire goes on, and what could not be kept is a gap in the run, or, by
policy, a request that `kept` refuses. Times are given, in nanoseconds since the exchange began.

A message that has come whole goes to the spool as one, where nothing in it has to be redacted: that costs a third of what
its events cost one after the other. All else (what streams, is compressed, holds a secret, or finds the spool in trouble)
goes event by event.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from calls.events import Data, ExchangeClosed, MessageEnded, Record, RequestStarted, ResponseStarted, Side
from calls.model import ChunkKind, Headers, Outcome
from calls.redaction.body import BodyRedactor, Piece
from calls.redaction.redactor import Head, Redactor
from calls.redaction.streams.streamed_body import StreamedBody
from calls.redaction.streams.streamed_messages import RedactedMessage, StreamedMessages
from proxy.recording.ordered_queue import OrderedQueue
from proxy.recording.spool_outbox import Journal, SpoolOutbox
from store.spool import SpoolError

type Policy = Literal["gap", "refuse"]
"""What happens to requests that cannot be recorded: they pass and leave a gap, or they are refused."""

QUICK: Final = 256 << 10
"""A held body that opens to no more is redacted at once: a thread would cost more than it saves."""

BEHIND: Final = 1 << 20
SWITCHING: Final = 101


@dataclass(slots=True, eq=False)
class _Message:
    """One side's message while it passes."""

    side: Side
    body: BodyRedactor
    passed: int = 0
    taken: int = 0
    """Bytes that were given to be kept."""

    held: int = 0
    finished: bool = False
    """Whether the body's redactor has given all it will."""

    ended: bool = False
    truncated: bool = False
    messages: StreamedMessages | None = None
    """What redacts the messages, where this is one side of a WebSocket."""

    lost: bool = False
    """Whether a piece could not be kept. What comes behind it is not kept either: it would stand in the wrong place."""


class _End(NamedTuple):
    """An end to be told; what it says is known only when its turn comes."""

    message: _Message
    at: int
    trailers: Headers = ()
    cut: bool = False
    """The message did not end: to be told only when bytes of it are lacking."""


class RecordingContext(Protocol):
    """What the recordings of one recorder share."""

    spool: Journal
    redactor: Redactor
    ledger: SpoolOutbox
    counts: Counter[str]
    body_limit: int
    on_failure: Policy

    def hold(self, size: int) -> bool:
        """Take memory for a piece of a body that has to be held, if there is any left."""

    def release(self, size: int) -> None:
        """Give it back."""

    def work(self, body: BodyRedactor) -> "Future[list[Piece]]":
        """Finish redacting a body on a thread."""

    def busy(self, recording: "Recording") -> None:
        """Note that a body of this recording is being redacted on a thread."""

    def free(self, recording: "Recording") -> None:
        """Note that none is any more."""


class Recording:
    """One exchange while it passes. Everything but `kept` returns at once and never raises for the world's faults."""

    __slots__ = (
        "_closed",
        "_first",
        "_gathered",
        "_head",
        "_last",
        "_line",
        "_mute",
        "_recorder",
        "_request",
        "_response",
        "_run",
        "_started",
        "id",
        "missed",
    )

    def __init__(self, recorder: RecordingContext, started: RequestStarted, head: Head) -> None:
        self.id = started.id
        self._recorder = recorder
        self._run = started.run
        self._started = started
        self._head = head
        self._gathered: list[tuple[int, bytes]] | None = []
        """What has come of the request, as long as nothing is told."""

        self._request: _Message | None = None
        """None: nothing of it is told, or all of it was told as one."""

        self._response: _Message | None = None
        self._line: OrderedQueue[Record | _End] | None = None
        """What waits behind a body that is being worked on."""

        self._first = self._last = 0
        self._mute = False
        self.missed = ""
        """Why something of it is not kept; nothing when all of it is."""

        self._closed = False

    # -- what the engine tells

    def data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None:
        """A piece of a body, or a WebSocket's message, has arrived."""
        if self._gathered is not None:
            if side == "request" and kind == "data":
                self._gathered.append((at, data))
                return
            self.tell()
        message = self._request if side == "request" else self._response
        if message is None or self._closed:
            return
        size = len(data)
        message.passed += size
        if kind != "data":
            self._frame(message, data, at, kind)
        elif message.truncated or message.ended:
            message.truncated = True
        elif message.taken + size > self._recorder.body_limit or (message.body.heavy and not self._held(message, size)):
            self._last_piece(message, data, at)
        else:
            message.taken += size
            if self._line is None and message.body.passes(data):
                self._write(Data(self.id, at, side, data))
                return
            for piece in message.body.feed(data, at):
                self.put(self._piece(message, piece))
            if isinstance(message.body, StreamedBody) and not self._wait(message, message.body.waiting):
                self._finish(message)
                message.truncated = True

    def response(self, at: int, status: int, reason: str, http_version: str, headers: Headers) -> None:
        """The response's head has arrived. One that only announces another (1xx) is not kept."""
        if self._closed or self._response is not None or (status < 200 and status != SWITCHING):
            return
        self.tell()
        redactor = self._recorder.redactor
        head = redactor.answer(headers)
        self._response = _Message("response", redactor.stream(head.content_type, head.content_encoding))
        reason = redactor.text(reason)
        self.put(ResponseStarted(self.id, at, status, reason, http_version, head.headers, head.redactions))

    def ended(self, side: Side, at: int, trailers: Headers = ()) -> None:
        """One side's message is whole."""
        if self._gathered is not None and side == "request":
            if not trailers and self._asked(self._gathered, at):
                return
            self.tell()
        message = self._request if side == "request" else self._response
        if message is None or message.ended or self._closed:
            return
        message.ended = True
        self._finish_messages()
        self._finish(message)
        self.put(_End(message, at, trailers))

    def truncate(self, side: Side) -> None:
        """Bytes of one side pass from here on that are not told: its record says so."""
        self.tell()
        message = self._request if side == "request" else self._response
        if message is not None:
            message.truncated = True

    def closed(self, at: int, outcome: Outcome, error: str | None = None) -> None:
        """The exchange is over, however it ended."""
        if self._closed:
            return
        self.tell()
        self._closed = True
        if outcome == "completed" and self.missed and self._recorder.on_failure == "refuse":
            # The engine breaks the exchange off, for `kept` is False: its client does not get the end.
            outcome, error = "refused", f"not passed on, because it could not be recorded: {self.missed}"
        self._finish_messages()
        self._recorder.counts[f"exchanges/{outcome}"] += 1
        for message in filter(None, (self._request, self._response)):
            if not message.ended:
                self._finish(message)
                self.put(_End(message, at, cut=True))
        self.put(ExchangeClosed(self.id, at, outcome, None if error is None else self._recorder.redactor.text(error)))

    def asked(self, body: bytes, at: int) -> None:
        """The request has arrived, all of it."""
        if self._gathered is None or self._gathered or not self._asked([(at, body)] if body else [], at):
            if body:
                self.data("request", body, at)
            self.ended("request", at)

    def answered(
        self, at: int, status: int, reason: str, http_version: str, headers: Headers, body: bytes, *, over: bool
    ) -> None:
        """The response has arrived, all of it; `over`: and the exchange is completed with it."""
        if not (over and self._answered(at, status, reason, http_version, headers, body)):
            self.response(at, status, reason, http_version, headers)
            if body:
                self.data("response", body, at)
            self.ended("response", at)
            if over:
                self.closed(at, "completed")

    @property
    def behind(self) -> bool:
        """Whether so much waits to be written that it would hold up everybody's next answer."""
        return self._recorder.spool.waiting > BEHIND

    def kept_now(self) -> bool:
        """Whether all told so far is kept, and needs no waiting for. False: ask `kept`."""
        if self._gathered is not None:
            self.tell()
        return self._line is None and not self.missed and self._recorder.spool.write_now(self._last)

    async def kept(self) -> bool:
        """Wait until all told so far is kept. False: something is not, and the policy is to refuse what cannot be."""
        self.tell()
        await self.settled()
        if not self.missed:
            try:
                await self._recorder.spool.reached(self._last, self._first)
            except SpoolError as error:
                self._miss(str(error))
        return not self.missed or self._recorder.on_failure == "gap"

    async def settled(self) -> None:
        """Wait until no body is being worked on."""
        if self._line is not None:
            await self._line.empty()

    # -- messages as one

    def _asked(self, pieces: Sequence[tuple[int, bytes]], at: int) -> bool:
        """Tell all of the request at once, if that can be."""
        body = pieces[0][1] if len(pieces) == 1 else b"".join([data for _, data in pieces])
        if not (self._head.plain and self._fits(body)):
            return False
        chunks = [Data(self.id, when, "request", data) for when, data in pieces]
        if not self._put_together([self._started, *chunks, MessageEnded(self.id, at, "request", len(body))]):
            return False
        self._gathered = None
        self._first = self._last
        return True

    def _answered(self, at: int, status: int, reason: str, version: str, headers: Headers, body: bytes) -> bool:
        """Tell all of the response at once, and the end of the exchange, if that can be."""
        if self._request is not None or self._gathered is not None or self._response is not None:
            return False
        recorder, name = self._recorder, self.id
        head = recorder.redactor.answer(headers)
        if self._closed or self.missed or not (head.plain and self._fits(body)):
            return False
        started = ResponseStarted(
            name, at, status, recorder.redactor.text(reason), version, head.headers, head.redactions
        )
        ended, closed = MessageEnded(name, at, "response", len(body)), ExchangeClosed(name, at, "completed")
        together = (started, Data(name, at, "response", body), ended, closed) if body else (started, ended, closed)
        if not self._put_together(together):
            return False
        self._closed = True
        recorder.counts["exchanges/completed"] += 1
        return True

    def _fits(self, body: bytes) -> bool:
        """Whether a body may be kept as it is: not too long, and nothing in it looks like a secret."""
        return len(body) <= self._recorder.body_limit and (not body or self._recorder.redactor.is_clean(body))

    def _put_together(self, records: Sequence[Record]) -> bool:
        number = self._recorder.ledger.put_together(records)
        if number is None:
            return False
        self._last = number
        return True

    def tell(self) -> None:
        """From here on, tell each event as it comes, and first those that were kept back."""
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            self._request = _Message("request", self._head.body())
            self.put(self._started)
            self._first = self._last
            for at, data in gathered:
                self.data("request", data, at)

    # -- bodies

    def _held(self, message: _Message, size: int) -> bool:
        """Have room for a piece that has to be held."""
        if not self._recorder.hold(size):
            return False
        message.held += size
        return True

    def _wait(self, message: _Message, size: int) -> bool:
        """Have room for so much of a stream that may still spell out a secret; what it had room for before is given back."""
        self._recorder.release(message.held)
        message.held = 0
        return self._held(message, size)

    def _last_piece(self, message: _Message, data: bytes, at: int) -> None:
        """The piece at which the limit is reached: as much of it as there is room for, and nothing more."""
        message.truncated = True
        if message.body.heavy:
            return
        # Redacted as a whole and then cut: so a secret at the cut is not taken for something shorter.
        *pieces, last = [*message.body.feed(data, at), *message.body.finish()]
        message.finished = True
        self._recorder.release(message.held)
        message.held = 0
        room = self._recorder.body_limit - message.taken
        for piece in [*pieces, last._replace(data=last.data[:room], size=min(room, len(last.data)))]:
            self.put(self._piece(message, piece))

    def _finish(self, message: _Message) -> None:
        """Have the rest of a body, now or from the thread."""
        if message.finished:
            return
        message.finished = True
        pieces = message.body.finish_within(QUICK)
        if pieces is not None:
            self._finished(message, pieces, self.put)
            return
        if self._line is None:
            try:
                self._line = OrderedQueue(self._settle, self._over)
            except RuntimeError:  # there is no loop that could wait
                self._finished(message, message.body.finish(), self.put)
                return
            self._recorder.busy(self)
        working = self._recorder.work(message.body)
        self._line.work(working, lambda: self._worked(message, working))

    def _finished(self, message: _Message, pieces: list[Piece], tell: Callable[[Data], None]) -> None:
        self._recorder.release(message.held)
        if message.body.withheld:
            message.truncated = True
            self._recorder.ledger.gap(self._run, message.body.withheld, self.id)
        for piece in pieces:
            tell(self._piece(message, piece))

    def _piece(self, message: _Message, piece: Piece) -> Data:
        at, data, redactions, size = piece
        odd = None if size == len(data) else size
        return Data(self.id, at, message.side, data, "data", odd, redactions, message.body.reencoded)

    def _frame(self, message: _Message, data: bytes, at: int, kind: ChunkKind) -> None:
        """A WebSocket's message is whole in itself."""
        if message.messages is None:
            message.messages = self._head.redactor.messages()
        if message.taken + len(data) > self._recorder.body_limit:
            if not message.truncated:
                self._recorder.ledger.gap(self._run, f"the {message.side} messages went on beyond the limit", self.id)
            self._put_messages(message, message.messages.finish())
            message.truncated = True
            self.put(Data(self.id, at, message.side, b"", kind, len(data)))
            return
        message.taken += len(data)
        self._put_messages(message, message.messages.feed(data, at, kind))
        if message.messages.waiting > message.held and not self._wait(message, message.messages.waiting):
            self._recorder.ledger.gap(self._run, f"there was no room to hold the {message.side} messages back", self.id)
            self._put_messages(message, message.messages.finish())
            message.truncated = True
            message.taken = self._recorder.body_limit

    def _put_messages(self, message: _Message, redacted: list[RedactedMessage]) -> None:
        for at, kind, data, count, fault, size in redacted:
            if fault is None:
                self.put(Data(self.id, at, message.side, data, kind, None, count))
                continue
            self._recorder.ledger.gap(self._run, f"a message could not be redacted ({fault})", self.id)
            message.truncated = True
            message.taken -= size
            self.put(Data(self.id, at, message.side, b"", kind, size))

    def _finish_messages(self) -> None:
        """What is still held of a WebSocket's messages is told before its end."""
        for message in (self._request, self._response):
            if message is not None and message.messages is not None:
                self._put_messages(message, message.messages.finish())
                self._wait(message, 0)

    # -- the line

    def put(self, item: Record | _End) -> None:
        """Write it when its turn comes, which is nearly always now."""
        if self._line is None:
            self._settle(item)
        else:
            self._line.put(item)

    def _over(self) -> None:
        self._line = None
        self._recorder.free(self)

    def _worked(self, message: _Message, pieces: "Future[list[Piece]]") -> None:
        mistake = pieces.exception()
        if mistake is None:
            self._finished(message, pieces.result(), self._write)
            return
        # A mistake of ours must neither keep the exchange open nor let an unredacted byte through.
        self._finished(message, [], self._write)
        message.truncated = True
        self._recorder.ledger.gap(self._run, f"a body could not be redacted: {mistake!r}", self.id)

    def _settle(self, item: Record | _End) -> None:
        if not isinstance(item, _End):
            self._write(item)
        elif not item.cut or item.message.truncated:
            message = item.message
            redactor = self._recorder.redactor
            redact = redactor.request_headers if message.side == "request" else redactor.response_headers
            trailers = redact(item.trailers)[0] if item.trailers else ()
            self._write(MessageEnded(self.id, item.at, message.side, message.passed, message.truncated, trailers))

    def _write(self, record: Record) -> None:
        if self._mute or (self.missed and isinstance(record, Data) and self._side(record.side).lost):
            return
        told = self._recorder.ledger.put(record)
        if isinstance(told, int):
            self._last = told
            return
        if isinstance(record, RequestStarted):
            self._mute = True
        elif isinstance(record, Data):
            message = self._side(record.side)
            message.truncated = message.lost = True
        self._miss(told)

    def _side(self, side: Side) -> _Message:
        """The message of which a piece was told."""
        message = self._request if side == "request" else self._response
        assert message is not None
        return message

    def _miss(self, reason: str) -> None:
        if not self.missed:
            self.missed = reason
            self._recorder.ledger.gap(self._run, reason, self.id)
