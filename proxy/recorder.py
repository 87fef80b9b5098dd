"""What an engine saw, redacted and turned into events, on its way to the spool.

Nothing here raises for the world's faults: the wire goes on, and what could not be kept is a gap in the run, or, by
policy, a request that `kept` refuses. Times are given, in nanoseconds since the exchange began.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from calls.events import Closed, Data, Ended, Record, RequestStarted, ResponseStarted, Side
from calls.model import ChunkKind, Headers, Outcome, header
from calls.redact import Redactor
from calls.redact_body import BodyRedactor, Piece
from calls.redact_declared import Unreadable
from proxy.ledger import Journal, Ledger
from proxy.uuid7 import Uuid7
from store.spool import SpoolError

type Policy = Literal["gap", "refuse"]

BODY_LIMIT: Final = 32 << 20
HELD_LIMIT: Final = 256 << 20
QUICK: Final = 256 << 10
"""A held body that opens to no more is redacted at once: a thread would cost more than it saves."""

BEHIND: Final = 1 << 20
SWITCHING: Final = 101

WHOSE: Final = 256
"""How many names of runs are kept in mind, with how they are known."""

type Evidence = tuple[tuple[str, str], ...]


class Recorder:
    """The recorder of one door, for one event loop's thread."""

    def __init__(
        self,
        spool: Journal,
        redactor: Redactor,
        *,
        body_limit: int = BODY_LIMIT,
        held_limit: int = HELD_LIMIT,
        on_failure: Policy = "gap",
        now: Callable[[], int],
        randbits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self.spool = spool
        self.redactor = redactor
        self.body_limit = body_limit
        self.on_failure: Policy = on_failure
        self.ledger = Ledger(spool, now)
        self._now = now
        self._latest = 0
        """When the last exchange began. Later ones are later, whatever the clock does: their order is that of these times."""

        self.counts: Counter[str] = Counter()
        """How exchanges have ended."""

        self._new_id = Uuid7(now, randbits)
        self._room = held_limit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="redact")
        self._working: set[Recording] = set()
        self._whose = lru_cache(WHOSE)(self._whose_new)

    def begin(
        self,
        *,
        run: str,
        run_evidence: Evidence = (),
        step: int | None = None,
        actor: str | None = None,
        method: str,
        url: str,
        http_version: str,
        headers: Headers,
    ) -> "Recording":
        """A request's head has arrived."""
        started_at = self._latest = max(self._now(), self._latest + 1)
        run, evidence, actor = self._whose(run, run_evidence, actor)
        head = self.redactor.head(method, url, headers)
        self.ledger.check(run)
        recording = Recording(self, self._new_id(), run, head.body(), head.redactor)
        told = evidence, step, actor, head.redactions
        recording.put(
            RequestStarted(recording.id, run, started_at, method, head.url, http_version, head.headers, *told)
        )
        return recording

    def _whose_new(self, run: str, evidence: Evidence, actor: str | None) -> tuple[str, Evidence, str | None]:
        """Whose it is, redacted. A client mostly says the same, and so it is found out once."""
        text = self.redactor.text
        return text(run), tuple((source, text(value)) for source, value in evidence), actor and text(actor)

    def gap(self, run: str, reason: str, exchange: str | None = None) -> None:
        """Something passes that is not recorded."""
        self.ledger.gap(self.redactor.text(run), self.redactor.text(reason), exchange)

    async def settled(self) -> None:
        """Wait until no body is being worked on, and offer what is owed once more: call it before the spool is closed."""
        while self._working:
            await asyncio.gather(*(recording.settled() for recording in list(self._working)))
        self.ledger.settle()

    # -- for recordings

    def hold(self, size: int) -> bool:
        """Take room for a piece of a body that has to be held, if there is any."""
        if size > self._room:
            return False
        self._room -= size
        return True

    def release(self, size: int) -> None:
        """Give it back."""
        self._room += size

    def work(self, body: BodyRedactor) -> "Future[list[Piece]]":
        """Finish a body on the thread."""
        return self._pool.submit(body.finish)

    def busy(self, recording: "Recording") -> None:
        """A body of this recording is being worked on."""
        self._working.add(recording)

    def free(self, recording: "Recording") -> None:
        """None is any more."""
        self._working.discard(recording)


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
    lost: bool = False
    """Whether a piece could not be kept. What comes behind it is not kept either: it would stand in the wrong place."""


class _End(NamedTuple):
    """An end to be told; what it says is known only when its turn comes."""

    message: _Message
    at: int
    trailers: Headers = ()
    cut: bool = False
    """The message did not end: to be told only when bytes of it are lacking."""


class _Work(NamedTuple):
    """A body that is being redacted on the thread. What comes after it waits in line."""

    message: _Message
    pieces: "Future[list[Piece]]"


def _body(redactor: Redactor, headers: Headers) -> BodyRedactor:
    return redactor.stream(header(headers, "content-type"), header(headers, "content-encoding"))


class Recording:
    """One exchange while it passes. Everything but `kept` returns at once and never raises for the world's faults."""

    __slots__ = (
        *(
            "_closed",
            "_last",
            "_line",
            "_missed",
            "_mute",
            "_recorder",
            "_redactor",
            "_request",
            "_response",
            "_run",
            "_waiters",
            "id",
        ),
    )

    def __init__(self, recorder: Recorder, name: str, run: str, body: BodyRedactor, redactor: Redactor) -> None:
        self.id = name
        self._recorder = recorder
        self._redactor = redactor
        self._run = run
        self._request = _Message("request", body)
        self._response: _Message | None = None
        self._line: deque[Record | _End | _Work] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._last = 0
        self._mute = False
        self._missed = False
        self._closed = False

    # -- what the engine tells

    def data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None:
        """A piece of a body, or a WebSocket's message, has arrived."""
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
            for piece in message.body.feed(data, at):
                self._piece(message, piece)

    def response(self, at: int, status: int, reason: str, http_version: str, headers: Headers) -> None:
        """The response's head has arrived. One that only announces another (1xx) is not kept."""
        if self._closed or self._response is not None or (status < 200 and status != SWITCHING):
            return
        redactor = self._recorder.redactor
        self._response = _Message("response", _body(redactor, headers))
        seen, count = redactor.response_headers(headers)
        reason = redactor.text(reason)
        self.put(ResponseStarted(self.id, at, status, reason, http_version, seen, count))

    def ended(self, side: Side, at: int, trailers: Headers = ()) -> None:
        """One side's message is whole."""
        message = self._request if side == "request" else self._response
        if message is None or message.ended or self._closed:
            return
        message.ended = True
        self._finish(message)
        self.put(_End(message, at, trailers))

    def closed(self, at: int, outcome: Outcome, error: str | None = None) -> None:
        """The exchange is over, however it ended."""
        if self._closed:
            return
        self._closed = True
        self._recorder.counts[f"exchanges/{outcome}"] += 1
        for message in filter(None, (self._request, self._response)):
            if not message.ended:
                self._finish(message)
                self.put(_End(message, at, cut=True))
        self.put(Closed(self.id, at, outcome, None if error is None else self._recorder.redactor.text(error)))

    @property
    def behind(self) -> bool:
        """Whether so much waits to be written that it would hold up everybody's next answer."""
        return self._recorder.spool.waiting > BEHIND

    def kept_now(self) -> bool:
        """Whether all told so far is kept, and needs no waiting for. False: ask `kept`."""
        return not (self._line or self._missed) and self._recorder.spool.write_now(self._last)

    async def kept(self) -> bool:
        """Wait until all told so far is kept. False: something is not, and the policy is to refuse what cannot be."""
        await self.settled()
        if not self._missed:
            try:
                await self._recorder.spool.reached(self._last)
            except SpoolError as error:
                self._miss(str(error))
        return not self._missed or self._recorder.on_failure == "gap"

    async def settled(self) -> None:
        """Wait until no body is being worked on."""
        if self._line:
            future = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            await future

    # -- bodies

    def _held(self, message: _Message, size: int) -> bool:
        """Have room for a piece that has to be held."""
        if not self._recorder.hold(size):
            return False
        message.held += size
        return True

    def _last_piece(self, message: _Message, data: bytes, at: int) -> None:
        """The piece at which the limit is reached: as much of it as there is room for, and nothing more."""
        message.truncated = True
        if message.body.heavy:
            return
        # Redacted as a whole and then cut: so a secret at the cut is not taken for something shorter.
        *pieces, last = [*message.body.feed(data, at), *message.body.finish()]
        message.finished = True
        room = self._recorder.body_limit - message.taken
        for piece in [*pieces, last._replace(data=last.data[:room], size=min(room, len(last.data)))]:
            self._piece(message, piece)

    def _finish(self, message: _Message) -> None:
        """Have the rest of a body, now or from the thread."""
        if message.finished:
            return
        message.finished = True
        pieces = message.body.finish_within(QUICK)
        if pieces is not None:
            self._finished(message, pieces)
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._finished(message, message.body.finish())
            return
        work = _Work(message, self._recorder.work(message.body))
        self._line.append(work)
        self._recorder.busy(self)
        work.pieces.add_done_callback(lambda _: loop.call_soon_threadsafe(self._next))

    def _finished(self, message: _Message, pieces: list[Piece]) -> None:
        self._recorder.release(message.held)
        if message.body.withheld:
            message.truncated = True
            self._recorder.ledger.gap(self._run, message.body.withheld, self.id)
        for piece in pieces:
            self._piece(message, piece)

    def _piece(self, message: _Message, piece: Piece) -> None:
        if message.lost:
            return
        at, data, redactions, size = piece
        odd = None if size == len(data) else size
        self._write(Data(self.id, at, message.side, data, "data", odd, redactions, message.body.reencoded))

    def _frame(self, message: _Message, data: bytes, at: int, kind: ChunkKind) -> None:
        """A WebSocket's message is whole in itself."""
        if message.taken + len(data) > self._recorder.body_limit:
            if not message.truncated:
                self._recorder.ledger.gap(self._run, f"the {message.side} messages went on beyond the limit", self.id)
            message.truncated = True
            self.put(Data(self.id, at, message.side, b"", kind, len(data)))
            return
        try:
            new, count = self._redactor.message(data)
        except Unreadable as fault:
            self._recorder.ledger.gap(self._run, f"a message could not be redacted ({fault})", self.id)
            message.truncated = True
            self.put(Data(self.id, at, message.side, b"", kind, len(data)))
            return
        message.taken += len(data)
        self.put(Data(self.id, at, message.side, new, kind, None, count))

    # -- the line

    def put(self, item: Record | _End) -> None:
        """Write it when its turn comes, which is nearly always now."""
        if self._line:
            self._line.append(item)
        else:
            self._settle(item)

    def _next(self) -> None:
        """Go on with the line, up to what is still being worked on."""
        while self._line:
            item = self._line[0]
            if not isinstance(item, _Work):
                self._settle(item)
            elif not item.pieces.done():
                return
            else:
                self._worked(item)
            self._line.popleft()
        self._recorder.free(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _worked(self, work: _Work) -> None:
        mistake = work.pieces.exception()
        if mistake is None:
            self._finished(work.message, work.pieces.result())
            return
        # A mistake of ours must neither keep the exchange open nor let an unredacted byte through.
        self._finished(work.message, [])
        work.message.truncated = True
        self._recorder.ledger.gap(self._run, f"a body could not be redacted: {mistake!r}", self.id)

    def _settle(self, item: Record | _End) -> None:
        if not isinstance(item, _End):
            self._write(item)
        elif not item.cut or item.message.truncated:
            message = item.message
            redactor = self._recorder.redactor
            redact = redactor.request_headers if message.side == "request" else redactor.response_headers
            trailers = redact(item.trailers)[0] if item.trailers else ()
            self._write(Ended(self.id, item.at, message.side, message.passed, message.truncated, trailers))

    def _write(self, record: Record) -> None:
        if self._mute:
            return
        told = self._recorder.ledger.put(record)
        if isinstance(told, int):
            self._last = told
            return
        if isinstance(record, RequestStarted):
            self._mute = True
        elif isinstance(record, Data):
            message = self._request if record.side == "request" else self._response or self._request
            message.truncated = message.lost = True
        self._miss(told)

    def _miss(self, reason: str) -> None:
        if not self._missed:
            self._missed = True
            self._recorder.ledger.gap(self._run, reason, self.id)
