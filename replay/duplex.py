"""Replay calls that are answered before their request ends, such as gRPC calls that stream both ways.

Their client sends a part, waits for the answer to it, and only then sends more. So they cannot wait for a complete request
and its key. They are found by method and URL, and by what the recorded client had sent when its answer began. Each piece of
the answer is sent once the client has sent everything that came before that piece in the recording. Bodies are compared
byte for byte after redaction, which keeps their lengths.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from calls.model import Exchange, Headers, header
from calls.websocket_messages import is_websocket_body
from replay.answer import Answer, Piece
from replay.pacing import Pace
from replay.script import RecordedExchange

_KEYED_BY_VALUE: Final = ("json", "x-www-form-urlencoded", "multipart/", "text/")
"""Parts of media types whose bodies have keys that do not depend on their bytes. They are answered when they are complete."""


def may_be_duplex(method: str, headers: Headers) -> bool:
    """Return whether a request of which only the head is known may be answered before its end."""
    media_type = (header(headers, "content-type") or "").lower()
    return (
        method not in ("GET", "HEAD")
        and header(headers, "content-length") is None
        and not any(part in media_type for part in _KEYED_BY_VALUE)
    )


def is_grpc(headers: Headers) -> bool:
    """Return whether a request is one of gRPC, whose URL says which method is called."""
    return (header(headers, "content-type") or "").lower().startswith("application/grpc")


def is_duplex(exchange: Exchange) -> bool:
    """Return whether a recorded call was answered before its request ended, and the answer ended after that."""
    request_body, response, start = exchange.request.body, exchange.response, exchange.first_byte_at
    if (
        not request_body.chunks
        or request_body.truncated
        or response is None
        or start is None
        or is_websocket_body(request_body)
    ):
        return False
    last = exchange.ended_at if response.trailers else response.body.chunks[-1].at if response.body.chunks else start
    return start < request_body.chunks[-1].at <= (last or start)


class UnrecordedCall:
    """A call whose URL was not recorded (implements `Duplex`). It is refused before its end, for which its client may not come."""

    has_diverged = False

    def __init__(self, refuse: Callable[[], Answer | None]) -> None:
        self._refuse: Callable[[], Answer | None] | None = refuse

    def receive(self, data: bytes) -> Answer | None:
        """Refuse the call when some of its body has come."""
        if not data or self._refuse is None:
            return None
        refuse, self._refuse = self._refuse, None
        return refuse()

    def end(self) -> None:
        """Do nothing: the call was refused."""


class DuplexReplay:
    """The replay of one such call (implements `Duplex`)."""

    def __init__(
        self,
        candidates: Sequence[RecordedExchange],
        redact: Callable[[bytes], bytes],
        begin: Callable[[RecordedExchange, "DuplexReplay"], Answer | None],
        refuse: Callable[[RecordedExchange, int, bool], Answer | None],
    ) -> None:
        """`begin` takes a candidate and returns its answer.

        `refuse` gets a call that the request is not, and after how many bytes that showed. It returns the answer to that, unless
        the recorded answer has begun (its third argument).
        """
        self._candidates = list(candidates)
        self._redact = redact
        self._begin = begin
        self._refuse = refuse
        self._received = bytearray()
        self._recorded: RecordedExchange | None = None
        """The call that is replayed, once it is known."""

        self._is_over = False
        self.has_diverged = False

    def receive(self, data: bytes) -> Answer | None:
        """Take more of the request's body. Return the answer when it may begin."""
        if self._is_over:
            return None
        before = len(self._received)
        self._received += data
        if (recorded := self._recorded) is not None:
            if not self._fits(recorded, before):
                self._diverge(recorded)
            return None
        fitting = [one for one in self._candidates if self._fits(one, before)]
        if not fitting:
            self._is_over = True
            return self._refuse(self._candidates[0], len(self._received), False)
        self._candidates = fitting
        for one in fitting:
            least_size = _bytes_before(one.exchange, one.exchange.first_byte_at or 0)
            # Without a byte, only a single candidate is certain.
            if len(self._received) >= least_size and (self._received or len(self._candidates) == 1):
                self._recorded = one
                answer = self._begin(one, self)
                self._is_over = answer is None
                return answer
        return None

    def end(self) -> None:
        """Handle the end of the request."""
        recorded = self._recorded
        if (
            recorded is not None
            and not self._is_over
            and len(self._received) < len(recorded.exchange.request.body.data)
        ):
            self._diverge(recorded)

    def pieces(self, exchange: Exchange, pace: Pace) -> Iterator[Piece]:
        """Return the pieces of the answer, each ready when its part of the request has come; last, an empty one for the end."""
        assert exchange.response is not None
        body = exchange.response.body
        times = [chunk.at for chunk in body.chunks if chunk.size]
        for number, piece in enumerate(pace.pieces(body)):
            least_size = _bytes_before(exchange, times[min(number, len(times) - 1)]) if times else 0
            yield Piece(piece.at, piece.data, partial(self._ready_data, piece.data, least_size))
        yield Piece(pace.end_time(exchange), b"", partial(self._ready_data, b"", len(exchange.request.body.data)))

    def _ready_data(self, data: bytes, least_size: int) -> bytes | None:
        return data if len(self._received) >= least_size and not self.has_diverged else None

    def _diverge(self, recorded: RecordedExchange) -> None:
        self._is_over = self.has_diverged = True
        self._refuse(recorded, len(self._received), True)

    def _fits(self, recorded: RecordedExchange, matched: int) -> bool:
        """Return whether the recorded body begins with what was received, of which the first `matched` bytes do."""
        data, received = recorded.exchange.request.body.data, bytes(self._received[matched:])
        return data.startswith(received, matched) or data.startswith(self._redact(bytes(self._received)))


def _bytes_before(exchange: Exchange, at: int) -> int:
    """Return how much of the request had come at this time."""
    chunks = exchange.request.body.chunks
    number = bisect_left(chunks, at, key=lambda chunk: chunk.at)
    return chunks[number - 1].offset + chunks[number - 1].size if number else 0
