"""Answer a request from a recording, in its pieces and at its times, without any connection."""

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
from proxy.mitm.layer_events import Await, Full, Informational, Room
from proxy.mitm.protocol.websocket import Upgrade
from proxy.mitm.relay_stream import RelayStream
from proxy.mitm.stream import RequestEvent, as_text
from proxy.mitm.websocket_replay import WebsocketReplay
from proxy.wire.problem import Problem
from replay.answer import Answer, Dialogue, Piece, again, mark

BURST = 64 << 10
"""How much goes out before we see whether the client takes it."""

# RFC 9110 7.6.1, and what this side of the wire decides by itself.
HOP_BY_HOP = frozenset(
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

type Step = Callable[[], CommandGenerator[None]]


class ReplayStream(RelayStream):
    """One request and the answer that somebody else gives to it; without one it is relayed."""

    def __init__(self, context: Context, stream_id: int, visit: MitmConnection) -> None:
        super().__init__(context, stream_id, visit)
        self._chunks: list[Chunk] = []
        self._began = time.monotonic_ns()
        self._given_at = 0
        self._plan: deque[tuple[int, Step]] = deque()
        self._full = False
        self._sent = 0
        self._conversing: WebsocketReplay | None = None
        self._lacking: Callable[[int], None] | None = None
        """What to call when the client leaves before it was sent all of the answer."""

        self._passed = 0
        """Bytes of the body that it was sent."""

    def alarmed(self) -> CommandGenerator[None]:
        """Go on with the answer."""
        if self.upstream is not None:
            yield from super().alarmed()
        elif self._conversing is not None:
            yield from self._say(self._conversing)
        else:
            yield from self.play()

    @property
    def _relays(self) -> bool:
        return self.visit.engine.config.mode_of(self.asked.target.host, self.asked.named) in (
            "record",
            "passthrough",
        )

    def start(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Collect the request: it is answered when it is whole. A host with another mode is relayed as if we were not here."""
        if self._relays:
            answerer = self.visit.engine.answerer
            assert answerer is not None
            answerer.note_passed_request(run=self.asked.named)
            yield from super().start(event)
            return
        if "100-continue" in self.flow.request.headers.get("expect", "").lower():
            # Nobody else will ask for the body.
            interim = http.Response(b"HTTP/1.1", 100, b"Continue", http.Headers(), None, None, 0.0, None)
            yield self.to_client(Informational(self.stream_id, interim))
        self.client_state = self.collect

    def collect(self, event: RequestEvent) -> CommandGenerator[None]:
        """Take in the request."""
        match event:
            case RequestData(data=data):
                self._chunks.append(Chunk(time.monotonic_ns() - self._began, len(self._body), len(data)))
                self._body += data
                if len(self._body) > self.visit.engine.config.limits.answered_request:
                    self._unseen(large=True)
                    detail = "the request is larger than what can be looked up in a recording"
                    yield from self.refuse(Problem(413, "request_too_large", detail))
            case RequestTrailers(trailers=trailers):
                self.flow.request.trailers = trailers
            case RequestEndOfMessage():
                self.client_state = self.over
                yield from self.ask()

    def ask(self) -> CommandGenerator[None]:
        """Get the answer, or go live."""
        answerer, asked = self.visit.engine.answerer, self.asked
        assert answerer is not None
        body = Body(data=bytes(self._body), chunks=tuple(self._chunks), size=len(self._body))
        request = Request(
            method=asked.method,
            url=asked.url,
            http_version=asked.http_version,
            headers=asked.headers,
            body=body,
            trailers=as_text(self.flow.request.trailers),
        )
        waiting = Await(
            lambda: answerer.answer(request, run=asked.named, owner=self.visit.owner, actor=asked.identity.actor)
        )
        yield waiting
        if isinstance(waiting.result, Answer):
            self._body.clear()
            if waiting.result.recorded:
                self.begin_tape()
                self._tell_request(body)
            yield from self.give(waiting.result)
        elif self.visit.engine.config.mode_of(asked.target.host, asked.named) == "replay":
            detail = "nobody answered this request, and no upstream may be asked in replay"
            yield from self.refuse(Problem(502, "not_answered", detail))
        else:
            yield from self.go_live(body)

    def go_live(self, body: Body) -> CommandGenerator[None]:
        """Relay and record the collected request."""
        self.begin_tape()
        if problem := self.visit.engine.refusal(self.asked.target, self.visit.captured):
            yield from self.refuse(problem, "refused")
            return
        self._tell_request(body)
        self.flow.request.headers.pop("expect", None)
        self.server_state = self.response_head
        yield from self.send_whole()

    def _tell_request(self, body: Body) -> None:
        for chunk in body.chunks:
            self.tape.data("request", body.data[chunk.offset : chunk.offset + chunk.size])
        self.tape.ended("request", as_text(self.flow.request.trailers))

    def mark(self, response: http.Response) -> None:
        """Say that this comes from the upstream, where it might have come from a recording."""
        if self._relays:
            return
        name, value = mark("live", run=self.asked.identity.run)
        response.headers[name] = value

    # Giving an answer

    def give(self, answer: Answer) -> CommandGenerator[None]:
        """Lay out the answer in time, and begin."""
        if answer.dialogue is not None:
            yield from self.converse(answer, answer.dialogue)
            return
        self._given_at = time.monotonic_ns()
        self._lacking = answer.left
        self.server_state = self.over
        if self.client_left():
            self._tell_lacking()
        if answer.status:
            self._plan.append((answer.at, lambda: self._send_head(answer)))
        for piece in answer.pieces:
            self._plan.append((piece.at, partial(self._due, answer, piece)))
        self._plan.append((answer.end_at, lambda: self._send_end(answer)))
        yield from self.play()

    def _due(self, answer: Answer, piece: Piece, since: int | None = None) -> CommandGenerator[None]:
        """Send a piece, if it is ready, or go on waiting for it."""
        data = piece.data if piece.ready is None else piece.ready()
        if data is not None:
            self._passed += len(data)
            yield from self._send_piece(answer, data)
            return
        self._lacking = answer.left
        now = time.monotonic_ns() - self._given_at
        since = now if since is None else since
        self._plan.appendleft((now + again(now - since), partial(self._due, answer, piece, since)))

    def play(self) -> CommandGenerator[None]:
        """Send what is due, then wait: for its time, or for the client to take what it got."""
        while self._plan and not self._full:
            at, step = self._plan[0]
            early = self._given_at + at - time.monotonic_ns()
            if early > 0:
                yield self.alarm(early / 1e9)
                return
            self._plan.popleft()
            if len(self._plan) <= 1:
                # What follows is the end, or this is: a client that leaves now has had all of it.
                self._lacking = None
            yield from step()

    def pressure(self, event: Full | Room) -> CommandGenerator[None]:
        """An HTTP/2 client takes no more for now, or more again."""
        if self.upstream is not None:
            yield from super().pressure(event)
            return
        self._full = isinstance(event, Full)
        yield from self.play()

    def _send_head(self, answer: Answer) -> CommandGenerator[None]:
        response = self._response(answer)
        self.flow.response = response
        empty = not answer.pieces and not answer.trailers and answer.end == "complete"
        if answer.recorded:
            self.tape.response(answer.status, answer.reason, answer.http_version, answer.headers)
            if empty and not (yield from self._told(answer)):
                return
        yield self.to_client(ResponseHeaders(self.stream_id, response, end_stream=empty))

    def _send_piece(self, answer: Answer, data: bytes) -> CommandGenerator[None]:
        if self.flow.request.method == "HEAD":
            return
        if answer.recorded:
            self.tape.data("response", data)
            # Its length may say that it is the last one.
            if len(self._plan) == 1 and answer.end == "complete" and not (yield from self._told(answer)):
                return
        yield self.to_client(ResponseData(self.stream_id, data))
        self._sent += len(data)
        if self._sent > BURST and len(self._plan) > 1:
            self._sent = 0
            yield Await(self.visit.drained)

    def _send_end(self, answer: Answer) -> CommandGenerator[None]:
        if answer.end == "hold":
            yield from self._hold(answer)
        elif answer.end == "cut":
            self.tape.closed("server_closed", "cut as it was recorded, or as an override says")
            yield from self.cut()
        elif (yield from self._told(answer)):
            if answer.trailers:
                fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.trailers]
                yield self.to_client(ResponseTrailers(self.stream_id, http.Headers(fields)))
            yield self.to_client(ResponseEndOfMessage(self.stream_id))
            yield from self.leave()

    def _told(self, answer: Answer) -> CommandGenerator[bool]:
        """What becomes part of a run is kept before its end goes out. False where it could not be, and had to."""
        if not answer.recorded or not self.tape.open:
            return True
        self.tape.ended("response", answer.trailers)
        self.tape.closed(answer.recorded)
        if (yield from self.kept()):
            return True
        self._plan.clear()
        yield from self.give_up("the answer could not be recorded")
        return False

    def leave(self) -> CommandGenerator[None]:
        """Nothing more happens here."""
        self._tell_lacking()
        yield from super().leave()

    def abandon(self, outcome: Outcome, why: str) -> None:
        """The connection is gone, or something of ours has failed."""
        self._unseen()
        self._tell_lacking()
        super().abandon(outcome, why)

    def broken_off(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        """One side is gone before the exchange was over."""
        self._unseen()
        yield from super().broken_off(event)

    def _unseen(self, *, large: bool = False) -> None:
        """Nobody gets to see the whole of the request, if it is still coming in."""
        answerer = self.visit.engine.answerer
        if self.client_state == self.collect and answerer is not None:
            answerer.note_unseen_request(run=self.asked.named, large=large)

    def _tell_lacking(self) -> None:
        lacking, self._lacking = self._lacking, None
        if lacking is not None:
            lacking(self._passed)

    def _hold(self, answer: Answer) -> CommandGenerator[None]:
        patience = answer.end_at + answer.patience
        self._plan.append((patience, lambda: self._stayed(answer)))
        yield from ()

    def _stayed(self, answer: Answer) -> CommandGenerator[None]:
        instead = answer.stayed() if answer.stayed is not None else None
        if instead is None or answer.status:
            self.tape.closed("timed_out", "the client waited for longer than is told here")
            yield from self.cut()
            return
        yield from self.give(instead)

    # Becoming a WebSocket

    def converse(self, answer: Answer, dialogue: Dialogue) -> CommandGenerator[None]:
        """Become the server of a WebSocket."""
        self.server_state = self.over
        self._lacking = lambda _: dialogue.left()
        try:
            upgrade = Upgrade(self.flow.request, answer.headers, self.visit.engine.message_memory)
        except Problem as problem:
            yield from self.refuse(problem)
            return
        self.flow.response = response = upgrade.response
        yield self.to_client(ResponseHeaders(self.stream_id, response, end_stream=False))
        self.tape.response(101, "Switching Protocols", "HTTP/1.1", as_text(response.headers))
        self._conversing = WebsocketReplay(upgrade, dialogue, self.tape.data)
        self.client_state = self.hear
        yield from self._say(self._conversing)
        # This lets in what the client has sent already: nothing may come behind it here.
        yield self.to_client(ResponseEndOfMessage(self.stream_id))

    def hear(self, event: RequestEvent) -> CommandGenerator[None]:
        """The client says something, or is gone."""
        assert self._conversing is not None
        if isinstance(event, RequestData):
            self._conversing.hear(event.data)
            yield from self._say(self._conversing)
        else:
            yield from self._part(self._conversing, "client_closed")

    def _say(self, conversing: WebsocketReplay) -> CommandGenerator[None]:
        """Send what is due, and see to it that we are woken for what follows."""
        for data in conversing.due():
            yield self.to_client(ResponseData(self.stream_id, data))
            self._sent += len(data)
            if self._sent > BURST:
                self._sent = 0
                yield Await(self.visit.drained)
        if conversing.over:
            yield from self._part(conversing, "server_closed")
        elif (seconds := conversing.next_in()) is not None:
            yield self.alarm(seconds)

    def _part(self, conversing: WebsocketReplay, otherwise: Outcome) -> CommandGenerator[None]:
        """It is over, with a goodbye or otherwise."""
        if self.tape.open:
            self.tape.ended("response")
            self.tape.closed("completed" if conversing.parted else otherwise)
        yield from self.cut()

    def _response(self, answer: Answer) -> http.Response:
        """The answer's head, with the framing that belongs to this connection."""
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
