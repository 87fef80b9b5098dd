"""Answer a request from a recording, with its pieces and timing, without an upstream connection."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from mitmproxy import http
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)

from calls.model import Body, Chunk, Outcome, Request
from proxy.mitm.connection import MitmConnection
from proxy.mitm.layer_events import Await, InterimResponse, PeerFull, PeerReady
from proxy.mitm.protocol.websocket import WebsocketUpgrade
from proxy.mitm.relay_stream import RelayStream
from proxy.mitm.stream import RequestEvent, text_fields
from proxy.mitm.websocket_replay import WebsocketReplay
from proxy.wire.heads import HOP_BY_HOP
from proxy.wire.problem import Problem, unanswerable_size_problem
from replay.answer import Answer, Dialogue, Duplex, Piece, recheck_delay, source_header

BURST_BYTES = 64 << 10
"""Bytes to send before waiting for room in the client's buffer."""

type Step = Callable[[], CommandGenerator[None]]


class ReplayStream(RelayStream):
    """One request, answered by the answerer. Without an answer it is relayed live, if the mode allows it."""

    def __init__(self, context: Context, stream_id: int, connection: MitmConnection) -> None:
        super().__init__(context, stream_id, connection)
        self._chunks: list[Chunk] = []
        self._started_at = time.monotonic_ns()
        self._answer_started_at = 0
        self._plan: deque[tuple[int, Step]] = deque()
        self._is_client_full = False
        self._burst_bytes = 0
        self._websocket: WebsocketReplay | None = None
        self._duplex: Duplex | None = None
        """What may answer the request before it ends."""

        self._is_answered_early = False
        """Whether it does."""

        self._is_piece_awaited = False
        """Whether the next part of the plan is a piece that was not ready."""

        self._note_client_left: Callable[[int], None] | None = None
        """Called if the client leaves before it was sent all of the answer."""

        self._sent_bytes = 0
        """Bytes of the body that were sent."""

    def handle_alarm(self) -> CommandGenerator[None]:
        """Continue the answer, or check the upstream's silence if the request is relayed."""
        if self.upstream is not None:
            yield from super().handle_alarm()
        elif self._websocket is not None:
            yield from self._send_websocket(self._websocket)
        else:
            yield from self.play()

    @property
    def _is_relayed(self) -> bool:
        return self.connection.engine.config.mode_for(self.request.target.host, self.request.named_run) in (
            "record",
            "passthrough",
        )

    def start(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Collect the request, to answer it when it is complete. Relay it if its host's mode is record or passthrough."""
        if self._is_relayed:
            answerer = self.connection.engine.answerer
            assert answerer is not None
            answerer.note_passed_request(run=self.request.named_run)
            yield from super().start(event)
            return
        if "100-continue" in self.flow.request.headers.get("expect", "").lower():
            # There is no upstream that would ask for the body.
            interim = http.Response(b"HTTP/1.1", 100, b"Continue", http.Headers(), None, None, 0.0, None)
            yield self.to_client(InterimResponse(self.stream_id, interim))
        self.client_state = self.collect
        if not event.end_stream and "content-length" not in self.flow.request.headers:
            yield from self._open_duplex()

    def _open_duplex(self) -> CommandGenerator[None]:
        """Ask for an answer that does not wait for the end of the request."""
        answerer, admitted = self.connection.engine.answerer, self.request
        assert answerer is not None
        request = self._request_with(Body())
        waiting = Await(
            lambda: answerer.open_duplex(
                request, run=admitted.named_run, owner=self.connection.owner, actor=admitted.identity.actor
            )
        )
        yield waiting
        is_whole = any(isinstance(event, RequestEndOfMessage) for event in self._paused_event_queue)
        self._duplex = None if is_whole else waiting.result
        if self._duplex is not None:
            yield from self._feed_duplex(self._duplex, b"")

    def _feed_duplex(self, duplex: Duplex, data: bytes) -> CommandGenerator[None]:
        if (answer := duplex.receive(data)) is not None:
            self._is_answered_early = True
            yield from self.begin_answer(answer)
        else:
            yield from self._continue_duplex(duplex)

    def _continue_duplex(self, duplex: Duplex) -> CommandGenerator[None]:
        """Send what is ready now that more of the request has come, or break off if that is not what was recorded."""
        if duplex.has_diverged:
            self._note_client_left = None  # it did not leave, and the miss is known
            yield from self.cut()
        elif self._is_piece_awaited:
            _, step = self._plan.popleft()
            self._plan.appendleft((0, step))
            yield from self.play()

    def collect(self, event: RequestEvent) -> CommandGenerator[None]:
        """State: collect the request."""
        match event:
            case RequestData(data=data) if self._duplex is not None and self._is_answered_early:
                yield from self._feed_duplex(self._duplex, data)
            case RequestEndOfMessage() if self._duplex is not None and self._is_answered_early:
                self.client_state = self.state_over
                self._duplex.end()
                yield from self._continue_duplex(self._duplex)
            case RequestData(data=data):
                self._chunks.append(Chunk(time.monotonic_ns() - self._started_at, len(self._body), len(data)))
                self._body += data
                limit = self.connection.engine.config.limits.answered_request
                if len(self._body) > limit:
                    self._note_unseen(large=True)
                    yield from self.refuse(unanswerable_size_problem(limit))
                elif self._duplex is not None:
                    yield from self._feed_duplex(self._duplex, data)
            case RequestTrailers(trailers=trailers):
                self.flow.request.trailers = trailers
            case RequestEndOfMessage():
                self.client_state = self.state_over
                yield from self.look_up()

    def look_up(self) -> CommandGenerator[None]:
        """Ask the answerer, and send its answer or relay the request live."""
        answerer, admitted = self.connection.engine.answerer, self.request
        assert answerer is not None
        body = Body(data=bytes(self._body), chunks=tuple(self._chunks), size=len(self._body))
        request = self._request_with(body)
        if admitted.named_run is not None:
            answerer.expect_run(admitted.named_run)
        waiting = Await(
            lambda: answerer.answer(
                request, run=admitted.named_run, owner=self.connection.owner, actor=admitted.identity.actor
            )
        )
        yield waiting
        if isinstance(waiting.result, Answer):
            self._body.clear()
            if waiting.result.recorded_outcome:
                self.begin_recording()
                self._record_request(body)
            yield from self.begin_answer(waiting.result)
        elif self.connection.engine.config.mode_for(admitted.target.host, admitted.named_run) == "replay":
            detail = "the replay has no answer to this request, and mode replay contacts no upstream"
            yield from self.refuse(Problem(502, "not_answered", detail))
        else:
            yield from self.go_live(body)

    def _request_with(self, body: Body) -> Request:
        admitted = self.request
        return Request(
            method=admitted.method,
            url=admitted.url,
            http_version=admitted.http_version,
            headers=admitted.headers,
            body=body,
            trailers=text_fields(self.flow.request.trailers),
        )

    def go_live(self, body: Body) -> CommandGenerator[None]:
        """Relay and record the collected request."""
        self.begin_recording()
        if problem := self.connection.engine.refusal(self.request.target, self.connection.captured):
            yield from self.refuse(problem, "refused")
            return
        self._record_request(body)
        self.flow.request.headers.pop("expect", None)
        self.server_state = self.response_head
        yield from self.send_whole()

    def _record_request(self, body: Body) -> None:
        for chunk in body.chunks:
            self.recording.record_data("request", body.data[chunk.offset : chunk.offset + chunk.size])
        self.recording.record_end("request", text_fields(self.flow.request.trailers))

    def mark(self, response: http.Response) -> None:
        """Mark the response as live, unless the host is always relayed."""
        if self._is_relayed:
            return
        name, value = source_header("live", run=self.request.identity.run)
        response.headers[name] = value

    # Sending an answer

    def begin_answer(self, answer: Answer) -> CommandGenerator[None]:
        """Schedule the parts of the answer, and start to send them."""
        if answer.dialogue is not None:
            yield from self.serve_websocket(answer, answer.dialogue)
            return
        self._answer_started_at = time.monotonic_ns()
        self._note_client_left = answer.note_client_left
        self.server_state = self.state_over
        if self.has_client_left():
            self._report_unsent()
        if answer.status:
            self._plan.append((answer.at, lambda: self._send_head(answer)))
        for piece in answer.pieces:
            self._plan.append((piece.at, partial(self._send_when_ready, answer, piece)))
        self._plan.append((answer.end_at, lambda: self._send_end(answer)))
        yield from self.play()

    def _send_when_ready(self, answer: Answer, piece: Piece, since: int | None = None) -> CommandGenerator[None]:
        """Send a piece if it is ready, else check again later."""
        now = time.monotonic_ns() - self._answer_started_at
        data = piece.sendable_data(now)
        self._is_piece_awaited = data is None
        if data is not None:
            self._sent_bytes += len(data)
            if data:
                yield from self._send_piece(answer, data)
            return
        self._note_client_left = answer.note_client_left
        since = now if since is None else since
        self._plan.appendleft((now + recheck_delay(now - since), partial(self._send_when_ready, answer, piece, since)))

    def play(self) -> CommandGenerator[None]:
        """Send the parts whose time has come, then wait for the next one's time or for room in the client's buffer."""
        while self._plan and not self._is_client_full:
            at, step = self._plan[0]
            early = self._answer_started_at + at - time.monotonic_ns()
            if early > 0:
                yield self.set_alarm(early / 1e9)
                return
            self._plan.popleft()
            if len(self._plan) <= 1:
                # Only the end is left: a client that leaves now has received the whole answer.
                self._note_client_left = None
            yield from step()

    def handle_pressure(self, event: PeerFull | PeerReady) -> CommandGenerator[None]:
        """Handle that the buffer of an HTTP/2 client is full, or has room again."""
        if self.upstream is not None:
            yield from super().handle_pressure(event)
            return
        self._is_client_full = isinstance(event, PeerFull)
        yield from self.play()

    def _send_head(self, answer: Answer) -> CommandGenerator[None]:
        response = self._answer_head(answer)
        self.flow.response = response
        empty = not answer.pieces and not answer.trailers and answer.end == "complete"
        if answer.recorded_outcome:
            self.recording.record_response_head(answer.status, answer.reason, answer.http_version, answer.headers)
            if empty and not (yield from self._record_before_end(answer)):
                return
        yield self.to_client(ResponseHeaders(self.stream_id, response, end_stream=empty))

    def _send_piece(self, answer: Answer, data: bytes) -> CommandGenerator[None]:
        if self.flow.request.method == "HEAD":
            return
        if answer.recorded_outcome:
            self.recording.record_data("response", data)
            # By the Content-Length, this piece may complete the response.
            if len(self._plan) == 1 and answer.end == "complete" and not (yield from self._record_before_end(answer)):
                return
        yield self.to_client(ResponseData(self.stream_id, data))
        self._burst_bytes += len(data)
        if self._burst_bytes > BURST_BYTES and len(self._plan) > 1:
            self._burst_bytes = 0
            yield Await(self.connection.drain_client)

    def _send_end(self, answer: Answer) -> CommandGenerator[None]:
        if answer.end == "hold":
            yield from self._begin_patience(answer)
        elif answer.end == "cut":
            self.recording.record_close("server_closed", "broken off as recorded, or by an override")
            yield from self.cut()
        elif (yield from self._record_before_end(answer)):
            if answer.trailers:
                fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.trailers]
                yield self.to_client(ResponseTrailers(self.stream_id, http.Headers(fields)))
            yield self.to_client(ResponseEndOfMessage(self.stream_id))
            if self.client_state == self.collect:
                self.client_state = self.discard_request
            else:
                yield from self.leave()

    def _record_before_end(self, answer: Answer) -> CommandGenerator[bool]:
        """Wait until an answer that becomes part of a run is recorded, before its end is sent. Return False if it cannot be and
        the policy is to refuse."""
        if not answer.recorded_outcome or not self.recording.is_open:
            return True
        self.recording.record_end("response", answer.trailers)
        self.recording.record_close(answer.recorded_outcome)
        if (yield from self.wait_until_recorded()):
            return True
        self._plan.clear()
        yield from self.give_up("the answer could not be recorded")
        return False

    def leave(self) -> CommandGenerator[None]:
        """End the stream."""
        self._report_unsent()
        yield from super().leave()

    def abandon(self, outcome: Outcome, why: str) -> None:
        """End the exchange because the connection is gone or failed."""
        self._note_unseen()
        self._report_unsent()
        super().abandon(outcome, why)

    def handle_disconnect(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        """Break off the exchange when one side disconnects before its end."""
        self._note_unseen()
        yield from super().handle_disconnect(event)

    def _note_unseen(self, *, large: bool = False) -> None:
        """Note a request whose end never arrived, if it was still being collected."""
        answerer = self.connection.engine.answerer
        if self.client_state == self.collect and not self._is_answered_early and answerer is not None:
            answerer.note_unseen_request(run=self.request.named_run, large=large)

    def _report_unsent(self) -> None:
        lacking, self._note_client_left = self._note_client_left, None
        if lacking is not None:
            lacking(self._sent_bytes)

    def _begin_patience(self, answer: Answer) -> CommandGenerator[None]:
        patience = answer.end_at + answer.patience
        self._plan.append((patience, lambda: self._end_patience(answer)))
        yield from ()

    def _end_patience(self, answer: Answer) -> CommandGenerator[None]:
        instead = answer.answer_waiting_client() if answer.answer_waiting_client is not None else None
        if instead is None or answer.status:
            self.recording.record_close(
                "timed_out", "the client kept waiting for the end of a response that was recorded without one"
            )
            yield from self.cut()
            return
        yield from self.begin_answer(instead)

    # WebSockets

    def serve_websocket(self, answer: Answer, dialogue: Dialogue) -> CommandGenerator[None]:
        """Act as the server of a recorded WebSocket."""
        self.server_state = self.state_over
        self._note_client_left = lambda _: dialogue.note_client_left()
        try:
            upgrade = WebsocketUpgrade(self.flow.request, answer.headers, self.connection.engine.message_memory)
        except Problem as problem:
            yield from self.refuse(problem)
            return
        self.flow.response = response = upgrade.response
        yield self.to_client(ResponseHeaders(self.stream_id, response, end_stream=False))
        self.recording.record_response_head(101, "Switching Protocols", "HTTP/1.1", text_fields(response.headers))
        self._websocket = WebsocketReplay(upgrade, dialogue, self.recording.record_data)
        self.client_state = self.receive_websocket
        yield from self._send_websocket(self._websocket)
        # Must be last: this delivers what the client has already sent.
        yield self.to_client(ResponseEndOfMessage(self.stream_id))

    def receive_websocket(self, event: RequestEvent) -> CommandGenerator[None]:
        """State: handle data from the client of a WebSocket, or its disconnect."""
        assert self._websocket is not None
        if isinstance(event, RequestData):
            self._websocket.receive_data(event.data)
            yield from self._send_websocket(self._websocket)
        else:
            yield from self._end_websocket(self._websocket, "client_closed")

    def _send_websocket(self, websocket: WebsocketReplay) -> CommandGenerator[None]:
        """Send the frames that are due, and set the alarm for the next one."""
        for data in websocket.take_due_data():
            yield self.to_client(ResponseData(self.stream_id, data))
            self._burst_bytes += len(data)
            if self._burst_bytes > BURST_BYTES:
                self._burst_bytes = 0
                yield Await(self.connection.drain_client)
        if websocket.is_over:
            yield from self._end_websocket(websocket, "server_closed")
        elif (seconds := websocket.seconds_until_due()) is not None:
            yield self.set_alarm(seconds)

    def _end_websocket(self, websocket: WebsocketReplay, otherwise: Outcome) -> CommandGenerator[None]:
        """End the WebSocket, with outcome `completed` if one side sent a close frame."""
        if self.recording.is_open:
            self.recording.record_end("response")
            self.recording.record_close("completed" if websocket.has_goodbye else otherwise)
        yield from self.cut()

    def _answer_head(self, answer: Answer) -> http.Response:
        """Return the answer's head, with the framing for this connection."""
        request = self.flow.request
        fields = [(name, value) for name, value in answer.headers if name.lower() not in HOP_BY_HOP]
        sized = any(name.lower() == "content-length" for name, _ in fields)
        bodiless = request.method == "HEAD" or answer.status in (204, 304)
        old = answer.http_version == "HTTP/1.0" or request.http_version == "HTTP/1.0"
        version = b"HTTP/2.0" if request.is_http2 else b"HTTP/1.0" if answer.http_version == "HTTP/1.0" else b"HTTP/1.1"
        if not request.is_http2 and not sized and not bodiless and not old:
            fields.append(("Transfer-Encoding", "chunked"))
        reason = answer.reason or (HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else "")
        return http.Response(
            version,
            answer.status,
            b"" if request.is_http2 else reason.encode("latin-1"),
            http.Headers([(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]),
            None,
            None,
            0.0,
            None,
        )
