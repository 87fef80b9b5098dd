"""Answer a request from a recording, in its pieces and at its times, without any connection."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from calls.model import Body, Chunk, Headers, Outcome, Request
from proxy.lane.admission import LaneRequest
from proxy.lane.exchange import Downstream, DownstreamHead, LaneExchange
from proxy.lane.relay import RelayedExchange
from proxy.lane.upstream_http1 import Source
from proxy.wire.engine import Answerer
from proxy.wire.problem import Problem
from proxy.wire.trailers import sendable_trailers
from replay.answer import Answer, Piece, again

BURST: Final = 64 << 10
"""How much goes out in one write."""

# RFC 9110 7.6.1, and what this side of the wire decides by itself.
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

type Step = Callable[[], None]


def exchange_for(desk: Downstream, asked: LaneRequest, owner: str, source: Source) -> LaneExchange:
    """Who takes care of a request: whoever answers in the upstream's place, where there is one for it, or the upstream."""
    engine = desk.engine
    answerer = engine.answerer
    if answerer is None:
        return RelayedExchange(desk, asked, source)
    if engine.config.mode_of(asked.target.host, asked.named) in ("record", "passthrough"):
        answerer.note_passed_request(run=asked.named)
        return RelayedExchange(desk, asked, source)
    return ReplayedExchange(desk, asked, answerer, owner, source)


class ReplayedExchange(LaneExchange):
    """One request and the answer that somebody else gives to it; without one it goes live, where that is allowed."""

    def __init__(self, desk: Downstream, asked: LaneRequest, answerer: Answerer, owner: str, source: Source) -> None:
        super().__init__(desk, asked)
        self._answerer = answerer
        self._owner = owner
        self._source = source

        # The request

        self._framed = asked.chunked and desk.version == "HTTP/1.1"
        """Whether its bytes are more than its payload."""

        self._raw: list[bytes] = []
        """Its bytes, where they are."""

        self._data = bytearray()
        self._chunks: list[Chunk] = []
        self._began = time.monotonic_ns()
        self._trailers: Headers = ()

        # The answer

        self._given_at = 0
        self._plan: deque[tuple[int, Step]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._told: DownstreamHead | None = None
        """Its head, until it goes out."""

        self._unsent: list[bytes] = []
        self._burst = 0
        """How much waits to go out behind the head."""

        self._waiting = False
        """Whether what is to go out has to be kept first."""

        self._chunked = False
        self._closes = False
        self._lacking: Callable[[int], None] | None = None
        """What to call when the client leaves before it was sent all of the answer."""

        self._sent = 0
        """Bytes of the body that it was sent."""

    # The request

    def start(self) -> None:
        asked = self.asked
        if not asked.body_follows:
            self._ask(b"")
        elif asked.expects:
            # Nobody else will ask for the body.
            self.desk.announce(self.desk.head(100, "Continue", ()))

    def take(self, go: bytes, pieces: Sequence[bytes]) -> None:
        if self._framed:
            self._raw.append(go)
        for piece in pieces:
            if piece:
                self._chunks.append(Chunk(time.monotonic_ns() - self._began, len(self._data), len(piece)))
                self._data += piece
        if len(self._data) > self.engine.config.limits.answered_request:
            self._answerer.note_unseen_request(run=self.asked.named, large=True)
            detail = "the request is larger than what can be looked up in a recording"
            self.refuse(Problem(413, "request_too_large", detail))

    def take_end(self, end: bytes, trailers: Headers) -> None:
        if self._framed:
            self._raw.append(end)
        self._trailers = trailers
        self._ask(bytes(self._data))

    def take_whole(self, body: bytes) -> None:
        if len(body) > self.engine.config.limits.answered_request:
            super().take_whole(body)
            return
        self._chunks = [Chunk(time.monotonic_ns() - self._began, 0, len(body))]
        self._ask(body)

    def abandon(self, outcome: Outcome, why: str) -> None:
        if self.asking and not self.over:
            self._answerer.note_unseen_request(run=self.asked.named)
        super().abandon(outcome, why)

    def _ask(self, body: bytes) -> None:
        self.asking = False
        self.desk.later(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        asked = self.asked
        request = Request(
            method=asked.method,
            url=asked.url,
            http_version=self.desk.version,
            headers=asked.headers,
            body=Body(data=body, chunks=tuple(self._chunks), size=len(body)),
            trailers=self._trailers,
        )
        actor = asked.identity.actor
        answer = await self._answerer.answer(request, run=asked.named, owner=self._owner, actor=actor)
        if self.over:
            if answer is not None and answer.left is not None:
                answer.left(0)
        elif answer is not None:
            if answer.recorded:
                self._tell(self._pieces(body))
            self._give(answer)
        elif self.engine.config.mode_of(asked.target.host, asked.named) == "replay":
            detail = "nobody answered this request, and no upstream may be asked in replay"
            self.refuse(Problem(502, "not_answered", detail))
        else:
            self._go_live(body)

    def _go_live(self, body: bytes) -> None:
        self.over = True
        self.desk.exchange = relay = RelayedExchange(self.desk, self.asked, self._source, live=True)
        relay.resend(b"".join(self._raw) if self._framed else body, self._pieces(body), self._trailers)

    def _tell(self, pieces: Iterable[bytes]) -> None:
        """Tell the request: the answer becomes part of a run of its own."""
        self.begin_tape(gathers=True)
        for piece in pieces:
            self.tape.data("request", piece)
        self.tape.ended("request", self._trailers)

    def _pieces(self, body: bytes) -> list[bytes]:
        return [body[chunk.offset : chunk.offset + chunk.size] for chunk in self._chunks]

    # Giving an answer

    def _give(self, answer: Answer) -> None:
        """Lay out the answer in time, and begin."""
        if answer.dialogue is not None:
            answer.dialogue.left()
            detail = "this was recorded as a WebSocket, and is asked for as something else; ask for it as one"
            self.refuse(Problem(426, "websocket_recorded", detail))
            return
        if self._may_go_at_once(answer):
            told = self._head_of(answer)
            pieces = [self._in_frame(piece.data) for piece in answer.pieces]
            self._finish(answer, told, pieces)
            return
        self._given_at = time.monotonic_ns()
        self._lacking = answer.left
        if answer.status:
            self._plan.append((answer.at, lambda: self._head(answer)))
        if self.asked.method != "HEAD":
            for piece in answer.pieces:
                self._plan.append((piece.at, partial(self._due, answer, piece)))
        self._plan.append((answer.end_at, lambda: self._end(answer)))
        self._play()

    def _may_go_at_once(self, answer: Answer) -> bool:
        """Whether nobody has to be told of it, and nothing waits for its time: most are sent by one write like that."""
        whole = answer.status and answer.end == "complete" and not (answer.recorded or answer.at or answer.end_at)
        if not whole or self.desk.full or self.asked.method == "HEAD":
            return False
        size = 0
        for piece in answer.pieces:
            size += len(piece.data)
            if piece.at or piece.ready is not None or size > BURST:
                return False
        return True

    def _due(self, answer: Answer, piece: Piece, since: int | None = None) -> None:
        """Send a piece, if it is ready, or go on waiting for it."""
        data = piece.data if piece.ready is None else piece.ready()
        if data is not None:
            self._sent += len(data)
            self._piece(answer, data)
            return
        self._lacking = answer.left
        now = time.monotonic_ns() - self._given_at
        since = now if since is None else since
        self._plan.appendleft((now + again(now - since), partial(self._due, answer, piece, since)))

    def _play(self) -> None:
        """Send what is due, then wait: for its time, or for the client to take what it got."""
        self._alarm = None
        while self._plan and not (self.over or self.desk.full or self._waiting):
            at, step = self._plan[0]
            early = self._given_at + at - time.monotonic_ns() if at else 0
            if early > 0:
                self._flush()
                self._alarm = asyncio.get_running_loop().call_later(early / 1e9, self._play)
                return
            self._plan.popleft()
            if len(self._plan) <= 1:
                # What follows is the end, or this is: a client that leaves now has had all of it.
                self._lacking = None
            step()
            if self._burst > BURST:
                self._flush()
        self._flush()

    def _flush(self) -> None:
        if (self._told is not None or self._unsent) and not (self.over or self._waiting):
            told, pieces = self._told, self._unsent
            self._told, self._unsent, self._burst = None, [], 0
            self.desk.send_all(told, pieces)

    def room(self, *, full: bool) -> None:
        if not full and self._alarm is None:
            self._play()

    def _kept(self, answer: Answer) -> None:
        """What becomes part of a run is kept before its end goes out: hold that back until it is."""
        last = len(self._plan) == 1 and answer.end == "complete"
        if not (answer.recorded and last and self.tape.open and self.tape.guarded):
            return
        self._flush()
        self.tape.ended("response", answer.trailers)
        self.tape.closed(answer.recorded)
        self._waiting = True
        self.once_kept(self._go_on, self.cut)

    def _go_on(self) -> None:
        self._waiting = False
        self._play()

    def _head(self, answer: Answer) -> None:
        if answer.recorded:
            self.tape.response(answer.status, answer.reason, answer.http_version, answer.headers)
        self._kept(answer)
        self._told = self._head_of(answer)

    def _head_of(self, answer: Answer) -> DownstreamHead:
        """The answer's head, with the framing that belongs to this connection."""
        status, http1 = answer.status, self.desk.version == "HTTP/1.1"
        headers = []
        sized = False
        for field in answer.headers:
            lowered = field[0].lower()
            if lowered not in HOP_BY_HOP:
                headers.append(field)
                sized = sized or lowered == "content-length"
        self._closes = http1 and answer.http_version == "HTTP/1.0"
        bodiless = self.asked.method == "HEAD" or status in (204, 304)
        self._chunked = http1 and not (sized or bodiless or self._closes)
        if self._chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        reason = answer.reason or (HTTPStatus(status).phrase if status in set(HTTPStatus) else "")
        return self.desk.head(status, reason, tuple(headers), old=self._closes)

    def _piece(self, answer: Answer, data: bytes) -> None:
        if answer.recorded:
            self.tape.data("response", data)
            # Its length may say that it is the last one.
            self._kept(answer)
        self._unsent.append(self._in_frame(data))
        self._burst += len(data)

    def _in_frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _end(self, answer: Answer) -> None:
        match answer.end:
            case "hold":
                self._plan.append((answer.end_at + answer.patience, lambda: self._stayed(answer)))
            case "cut":
                self._flush()
                self.tape.closed("server_closed", "cut as it was recorded, or as an override says")
                self.cut()
            case _:
                told, self._told = self._told, None
                self._finish(answer, told, self._unsent)

    def _finish(self, answer: Answer, told: DownstreamHead | None, pieces: list[bytes]) -> None:
        """Send the last of it."""
        if self._chunked:
            trailers = "".join(f"{name}: {value}\r\n" for name, value in sendable_trailers(answer.trailers))
            pieces.append(b"0\r\n" + trailers.encode("latin-1") + b"\r\n")
        self.desk.send_all(told, pieces, last=True, trailers=answer.trailers)
        self.finish(keep=False, closes=self._closes)

    def _stayed(self, answer: Answer) -> None:
        instead = answer.stayed() if answer.stayed is not None else None
        if instead is None or answer.status:
            self._flush()
            self.tape.closed("timed_out", "the client waited for longer than is told here")
            self.cut()
        else:
            self._give(instead)

    def release(self, *, keep: bool) -> None:  # noqa: ARG002 - there is nothing to keep
        if self._alarm is not None:
            self._alarm.cancel()
        lacking, self._lacking = self._lacking, None
        if lacking is not None:
            lacking(self._sent)
