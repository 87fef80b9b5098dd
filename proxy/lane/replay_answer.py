"""Answer a request from a recording, with its pieces and timing, without an upstream connection."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from msgspec.structs import replace

from calls.model import Body, Chunk, Headers, Outcome, Request
from proxy.lane.admission import LaneRequest
from proxy.lane.exchange import Downstream, DownstreamHead, LaneExchange
from proxy.lane.relay import RelayedExchange
from proxy.lane.upstream_http1 import Source
from proxy.wire.engine import Answerer
from proxy.wire.heads import HOP_BY_HOP
from proxy.wire.problem import Problem, unanswerable_size_problem
from proxy.wire.trailers import sendable_trailers
from replay.answer import Answer, Duplex, Piece, recheck_delay

BURST_BYTES: Final = 64 << 10
"""Maximum bytes of pieces in one write."""

type Step = Callable[[], None]


def exchange_for(downstream: Downstream, request: LaneRequest, owner: str, source: Source) -> LaneExchange:
    """Return the exchange for a request: replayed if there is an answerer and the host's mode allows it, else relayed."""
    engine = downstream.engine
    answerer = engine.answerer
    if answerer is None:
        return RelayedExchange(downstream, request, source)
    if engine.config.mode_for(request.target.host, request.named_run) in ("record", "passthrough"):
        answerer.note_passed_request(run=request.named_run)
        return RelayedExchange(downstream, request, source)
    if request.named_run is not None:
        answerer.expect_run(request.named_run)
    return ReplayedExchange(downstream, request, answerer, owner, source)


class ReplayedExchange(LaneExchange):
    """One request, answered by the answerer. Without an answer it is relayed live, if the mode allows it."""

    def __init__(
        self, downstream: Downstream, request: LaneRequest, answerer: Answerer, owner: str, source: Source
    ) -> None:
        super().__init__(downstream, request)
        self._answerer = answerer
        self._owner = owner
        self._source = source

        # The request

        self._is_framed = request.is_chunked and downstream.version == "HTTP/1.1"
        """Whether its bytes differ from its payload."""

        self._raw: list[bytes] = []
        """Its bytes in that case, for relaying it live."""

        self._data = bytearray()
        self._chunks: list[Chunk] = []
        self._started_at = time.monotonic_ns()
        self._trailers: Headers = ()
        self._duplex: Duplex | None = None
        """What may answer the request before it ends."""

        self._is_answered_early = False
        """Whether it does."""

        # The answer

        self._answer_started_at = 0
        self._plan: deque[tuple[int, Step]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_piece_awaited = False
        """Whether the next part of the plan is a piece that was not ready."""

        self._unsent_head: DownstreamHead | None = None
        """The head, until it is sent."""

        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        """Bytes that wait to be sent after the head."""

        self._is_waiting = False
        """Whether sending waits for the recorder."""

        self._is_chunked = False
        self._closes_connection = False
        self._note_client_left: Callable[[int], None] | None = None
        """Called if the client leaves before it was sent all of the answer."""

        self._sent_bytes = 0
        """Bytes of the body that were sent."""

    # The request

    def start(self) -> None:
        admitted = self.request
        if not admitted.has_body:
            self._look_up(b"")
        elif admitted.expects_continue:
            # There is no upstream that would ask for the body.
            self.downstream.send_interim(self.downstream.make_head(100, "Continue", ()))
        if admitted.is_chunked:
            self.downstream.start_task(self._open_duplex())

    async def _open_duplex(self) -> None:
        """Ask for an answer that does not wait for the end of the request, if that has not come already."""
        if not self.is_receiving:
            return
        admitted = self.request
        duplex = await self._answerer.open_duplex(
            self._request_with(b""), run=admitted.named_run, owner=self._owner, actor=admitted.identity.actor
        )
        if duplex is not None and not (self.is_over or self.is_refused) and self.is_receiving:
            self._duplex = duplex
            self._feed_duplex(duplex, bytes(self._data))

    def _feed_duplex(self, duplex: Duplex, data: bytes) -> None:
        if (answer := duplex.receive(data)) is not None:
            self._is_answered_early = True
            self._begin_answer(answer)
        else:
            self._continue_duplex(duplex)

    def _continue_duplex(self, duplex: Duplex) -> None:
        """Send what is ready now that more of the request has come, or break off if that is not what was recorded."""
        if duplex.has_diverged:
            self._note_client_left = None  # it did not leave, and the miss is known
            self._flush()
            self.cut()
        elif self._is_piece_awaited:
            _, step = self._plan.popleft()
            self._plan.appendleft((0, step))
            if self._alarm is not None:
                self._alarm.cancel()
            self._play()

    def take_data(self, forwardable: bytes, pieces: Sequence[bytes]) -> None:
        if self._is_answered_early:
            assert self._duplex is not None
            for piece in pieces:
                if piece and not self.is_over:
                    self._feed_duplex(self._duplex, piece)
            return
        if self._is_framed:
            self._raw.append(forwardable)
        for piece in pieces:
            if piece:
                self._chunks.append(Chunk(time.monotonic_ns() - self._started_at, len(self._data), len(piece)))
                self._data += piece
        limit = self.engine.config.limits.answered_request
        if len(self._data) > limit:
            self._answerer.note_unseen_request(run=self.request.named_run, large=True)
            self.refuse(unanswerable_size_problem(limit))
        elif self._duplex is not None:
            self._feed_duplex(self._duplex, b"".join(pieces))

    def take_end(self, end: bytes, trailers: Headers) -> None:
        if self._is_answered_early:
            assert self._duplex is not None
            self.is_receiving = False
            if not self.is_over:
                self._duplex.end()
                self._continue_duplex(self._duplex)
            return
        if self._is_framed:
            self._raw.append(end)
        self._trailers = trailers
        self._look_up(bytes(self._data))

    def take_whole(self, body: bytes) -> None:
        if len(body) > self.engine.config.limits.answered_request:
            super().take_whole(body)
            return
        self._chunks = [Chunk(time.monotonic_ns() - self._started_at, 0, len(body))]
        self._look_up(body)

    def abandon(self, outcome: Outcome, why: str) -> None:
        if self.is_receiving and not (self.is_over or self._is_answered_early):
            self._answerer.note_unseen_request(run=self.request.named_run)
        super().abandon(outcome, why)

    def _look_up(self, body: bytes) -> None:
        self.is_receiving = False
        self.downstream.start_task(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        admitted = self.request
        request, actor = self._request_with(body), admitted.identity.actor
        answer = await self._answerer.answer(request, run=admitted.named_run, owner=self._owner, actor=actor)
        if self.is_over:
            if answer is not None and answer.note_client_left is not None:
                answer.note_client_left(0)
        elif answer is not None:
            if answer.recorded_outcome:
                self._record_request(self._pieces(body))
            self._begin_answer(answer)
        elif self.engine.config.mode_for(admitted.target.host, admitted.named_run) == "replay":
            detail = "the replay has no answer to this request, and mode replay contacts no upstream"
            self.refuse(Problem(502, "not_answered", detail))
        else:
            self._go_live(body)

    def _request_with(self, body: bytes) -> Request:
        admitted = self.request
        return Request(
            method=admitted.method,
            url=admitted.url,
            http_version=self.downstream.version,
            headers=admitted.headers,
            body=Body(data=body, chunks=tuple(self._chunks), size=len(body)),
            trailers=self._trailers,
        )

    def _go_live(self, body: bytes) -> None:
        self.is_over = True
        self.downstream.exchange = relay = RelayedExchange(self.downstream, self.request, self._source, live=True)
        relay.resend(b"".join(self._raw) if self._is_framed else body, self._pieces(body), self._trailers)

    def _record_request(self, pieces: Iterable[bytes]) -> None:
        """Record the request, because the answer becomes part of a new run."""
        self.begin_recording(buffers_request=True)
        for piece in pieces:
            self.recording.record_data("request", piece)
        self.recording.record_end("request", self._trailers)

    def _pieces(self, body: bytes) -> list[bytes]:
        return [body[chunk.offset : chunk.offset + chunk.size] for chunk in self._chunks]

    # Sending an answer

    def _begin_answer(self, answer: Answer) -> None:
        """Schedule the parts of the answer, and start to send them."""
        if answer.dialogue is not None:
            answer.dialogue.note_client_left()
            detail = "the recorded response opens a WebSocket, and this request does not ask for one; send a WebSocket upgrade"
            self.refuse(Problem(426, "websocket_recorded", detail))
            return
        if self._can_send_at_once(answer):
            head = self._answer_head(answer)
            pieces = [self._frame_data(piece.data) for piece in answer.pieces]
            self._send_last(answer, head, pieces)
            return
        self._answer_started_at = time.monotonic_ns()
        self._note_client_left = answer.note_client_left
        if answer.status:
            self._plan.append((answer.at, lambda: self._buffer_head(answer)))
        if self.request.method != "HEAD":
            for piece in answer.pieces:
                self._plan.append((piece.at, partial(self._send_when_ready, answer, piece)))
        self._plan.append((answer.end_at, lambda: self._send_end(answer)))
        self._play()

    def _can_send_at_once(self, answer: Answer) -> bool:
        """Return whether the answer is neither recorded nor timed, so that one write sends it. Most are like that."""
        whole = (
            answer.status and answer.end == "complete" and not (answer.recorded_outcome or answer.at or answer.end_at)
        )
        if not whole or self.downstream.is_full or self.request.method == "HEAD":
            return False
        size = 0
        for piece in answer.pieces:
            size += len(piece.data)
            if piece.at or piece.ready_data is not None or size > BURST_BYTES:
                return False
        return True

    def _send_when_ready(self, answer: Answer, piece: Piece, since: int | None = None) -> None:
        """Send a piece if it is ready, else check again later."""
        now = time.monotonic_ns() - self._answer_started_at
        data = piece.sendable_data(now)
        self._is_piece_awaited = data is None
        if data is not None:
            self._sent_bytes += len(data)
            if data:
                self._buffer_piece(answer, data)
            return
        self._note_client_left = answer.note_client_left
        since = now if since is None else since
        self._plan.appendleft((now + recheck_delay(now - since), partial(self._send_when_ready, answer, piece, since)))

    def _play(self) -> None:
        """Send the parts whose time has come, then wait for the next one's time or for room in the client's buffer."""
        self._alarm = None
        while self._plan and not (self.is_over or self.downstream.is_full or self._is_waiting):
            at, step = self._plan[0]
            early = self._answer_started_at + at - time.monotonic_ns() if at else 0
            if early > 0:
                self._flush()
                self._alarm = asyncio.get_running_loop().call_later(early / 1e9, self._play)
                return
            self._plan.popleft()
            if len(self._plan) <= 1:
                # Only the end is left: a client that leaves now has received the whole answer.
                self._note_client_left = None
            step()
            if self._unsent_bytes > BURST_BYTES:
                self._flush()
        self._flush()

    def _flush(self) -> None:
        if (self._unsent_head is not None or self._unsent) and not (self.is_over or self._is_waiting):
            head, pieces = self._unsent_head, self._unsent
            self._unsent_head, self._unsent, self._unsent_bytes = None, [], 0
            self.downstream.send_pieces(head, pieces)

    def set_client_full(self, *, is_full: bool) -> None:
        if not is_full and self._alarm is None:
            self._play()

    def _record_before_end(self, answer: Answer) -> None:
        """If this is the last part of an answer that becomes part of a run, delay it until the answer is recorded."""
        last = len(self._plan) == 1 and answer.end == "complete"
        if not (answer.recorded_outcome and last and self.recording.is_open and self.recording.must_wait):
            return
        self._flush()
        self.recording.record_end("response", answer.trailers)
        self.recording.record_close(answer.recorded_outcome)
        self._is_waiting = True
        # Never at once: the caller puts what waits into what is sent only after this returns.
        self.downstream.call_soon(self._continue_when_recorded, self._continue, self.cut)

    def _continue(self) -> None:
        self._is_waiting = False
        self._play()

    def _buffer_head(self, answer: Answer) -> None:
        """Record the head if necessary, and keep it to be sent with the next pieces."""
        if answer.recorded_outcome:
            self.recording.record_response_head(answer.status, answer.reason, answer.http_version, answer.headers)
        self._record_before_end(answer)
        self._unsent_head = self._answer_head(answer)

    def _answer_head(self, answer: Answer) -> DownstreamHead:
        """Return the answer's head, with the framing for this connection."""
        status, http1 = answer.status, self.downstream.version == "HTTP/1.1"
        headers = []
        sized = False
        for field in answer.headers:
            lowered = field[0].lower()
            if lowered not in HOP_BY_HOP:
                headers.append(field)
                sized = sized or lowered == "content-length"
        self._closes_connection = http1 and answer.http_version == "HTTP/1.0"
        bodiless = self.request.method == "HEAD" or status in (204, 304)
        self._is_chunked = http1 and not (sized or bodiless or self._closes_connection)
        if self._is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        reason = answer.reason or (HTTPStatus(status).phrase if status in set(HTTPStatus) else "")
        head = self.downstream.make_head(status, reason, tuple(headers), is_http10=self._closes_connection)
        return replace(head, ends_by_close=True) if self._closes_connection and not (sized or bodiless) else head

    def _buffer_piece(self, answer: Answer, data: bytes) -> None:
        """Record a piece if necessary, and keep it until `_flush` or the end sends it."""
        if answer.recorded_outcome:
            self.recording.record_data("response", data)
            # By the Content-Length, this piece may complete the response.
            self._record_before_end(answer)
        self._unsent.append(self._frame_data(data))
        self._unsent_bytes += len(data)

    def _frame_data(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    def _send_end(self, answer: Answer) -> None:
        match answer.end:
            case "hold":
                self._plan.append((answer.end_at + answer.patience, lambda: self._end_patience(answer)))
            case "cut":
                self._flush()
                self.recording.record_close("server_closed", "broken off as recorded, or by an override")
                self.cut()
            case _:
                head, self._unsent_head = self._unsent_head, None
                self._send_last(answer, head, self._unsent)

    def _send_last(self, answer: Answer, head: DownstreamHead | None, pieces: list[bytes]) -> None:
        """Send the end of the answer."""
        if self._is_chunked:
            trailers = "".join(f"{name}: {value}\r\n" for name, value in sendable_trailers(answer.trailers))
            pieces.append(b"0\r\n" + trailers.encode("latin-1") + b"\r\n")
        self.downstream.send_pieces(head, pieces, is_last=True, trailers=answer.trailers)
        self.finish(keep=False, closes=self._closes_connection)

    def _end_patience(self, answer: Answer) -> None:
        instead = answer.answer_waiting_client() if answer.answer_waiting_client is not None else None
        if instead is None or answer.status:
            self._flush()
            self.recording.record_close(
                "timed_out", "the client kept waiting for the end of a response that was recorded without one"
            )
            self.cut()
        else:
            self._begin_answer(instead)

    def release(self, *, keep: bool) -> None:  # noqa: ARG002 - there is no upstream connection
        if self._alarm is not None:
            self._alarm.cancel()
        lacking, self._note_client_left = self._note_client_left, None
        if lacking is not None:
            lacking(self._sent_bytes)
