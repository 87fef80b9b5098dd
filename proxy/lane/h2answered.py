"""One request of HTTP/2 that is answered in the upstream's place, without any connection."""

import time
from collections import deque
from collections.abc import Callable

from calls.model import Chunk, Headers
from proxy.door import Answerer
from proxy.lane.answered import HOP_BY_HOP, Answered, Live, Step
from proxy.lane.h2exchange import Exchange2, Seat
from proxy.lane.h2heads import Asking, wired
from replay.answer import Answer


class Answered2(Exchange2, Answered):
    """One request and its answer, each recorded piece in a frame of its own."""

    def __init__(self, seat: Seat, asking: Asking, answerer: Answerer, owner: str, live: Callable[[], Live]) -> None:
        Answered.__init__(self, seat, asking.asked, answerer, owner, live)
        self._bodiless = asking.bodiless
        self._frames: deque[Step] = deque()
        self._whole = False
        """Whether the head is all there is."""

    # The request

    def start(self) -> None:
        if self._bodiless:
            self._ask(b"")
        elif self.asked.expects:
            # Nobody else will ask for the body.
            self.desk.interim(100)

    def take(self, data: bytes, *, last: bool) -> None:
        self._chunks.append(Chunk(time.monotonic_ns() - self._began, len(self._data), len(data)))
        self._data += data
        if len(self._data) > self.engine.config.limits.answered_request:
            self._too_large()
        elif last:
            self.asked_all(())

    def asked_all(self, trailers: Headers) -> None:
        self._trailers = trailers
        body = bytes(self._data)
        self._raw = [body]
        self._ask(body)

    # The answer

    def _as_one(self, answer: Answer) -> bytes | None:  # noqa: ARG002 - there is nothing to be saved: frames are written together
        return None

    def _flush(self) -> None:
        while self._frames and not (self.over or self._waiting):
            self._frames.popleft()()

    def _head(self, answer: Answer) -> None:
        fields = tuple(field for field in answer.headers if field[0].lower() not in HOP_BY_HOP)
        if answer.recorded:
            self.tape.response(answer.status, answer.reason, answer.http_version, answer.headers)
        last = len(self._plan) == 1 and answer.end == "complete"
        self._whole = last and not answer.trailers
        self._kept(answer, last=last)
        self._frames.append(lambda: self.desk.respond(wired(answer.status, fields), end=self._whole))
        self._flush()

    def _piece(self, answer: Answer, data: bytes) -> None:
        if answer.recorded:
            self.tape.data("response", data)
            self._kept(answer, last=len(self._plan) == 1 and answer.end == "complete")
        if data:
            self._frames.append(lambda: self.desk.write(data))
            self._flush()

    def _end(self, answer: Answer) -> None:
        if answer.end != "complete":
            super()._end(answer)
            return
        self._flush()
        if not self._whole:
            self.desk.end(b"", answer.trailers)
        self.finish(keep=False)
