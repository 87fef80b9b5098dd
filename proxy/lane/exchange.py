"""Handle one request: report it to the recorder, relay or answer it, and end it."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from calls.model import Headers, Outcome
from proxy.lane.admission import LaneRequest
from proxy.lane.heads import Fields
from proxy.wire.engine_state import EngineState
from proxy.wire.problem import Problem
from proxy.wire.recording_guard import RecorderInterface, RecordingGuard, RecordingInterface

MUCH: Final = 4 << 10
"""Bytes in one piece, of which a fast sender sends one after the other."""

A_LOT: Final = 64 << 10

BROKEN: Final = 2
"""What a stream of HTTP/2 is told where a connection of HTTP/1.1 would be closed: INTERNAL_ERROR (RFC 9113 7)."""


# Not frozen: one is made for each call, and to make a frozen one takes five times as long.
@dataclass(slots=True)
class DownstreamHead:
    """The head of a response. Nobody changes it."""

    status: int
    reason: str
    version: str
    fields: Headers
    """As the record has them."""

    raw: bytes = b""
    """What a client of HTTP/1.1 gets."""

    wire: Fields = ()
    """What one of HTTP/2 gets."""

    closes: bool = False
    """Whether a client of HTTP/1.1 can ask nothing more over its connection."""

    def marked(self, name: str, value: str) -> "DownstreamHead":
        """The same with one more field, of which the record knows nothing."""
        raw = self.raw and self.raw[:-2] + f"{name}: {value}\r\n\r\n".encode()
        return replace(self, raw=raw, wire=[*self.wire, (name.lower().encode(), value.encode())])


class Downstream(Protocol):
    """The client, as one exchange sees it: a connection of HTTP/1.1, or one stream of HTTP/2."""

    engine: EngineState
    version: str
    exchange: "LaneExchange | None"
    """The one that it sees."""

    full: bool
    """Whether the client takes no more for now."""

    code: int
    """Why it has left, in HTTP/2's terms."""

    def head(self, status: int, reason: str, headers: Headers, *, old: bool = False) -> DownstreamHead:
        """The head of a response of ours; `old`: in HTTP/1.0, where that can be told."""

    def announce(self, told: DownstreamHead) -> None:
        """Send the head of a response that only announces another."""

    def send(self, told: DownstreamHead | None, data: bytes, *, last: bool = False, trailers: Headers = ()) -> None:
        """Send a piece of a response, with its head before it where that is still to be sent; `last`: it is whole then.

        In HTTP/1.1 the bytes are the wire's, with all their framing."""

    def send_all(
        self, told: DownstreamHead | None, pieces: Sequence[bytes], *, last: bool = False, trailers: Headers = ()
    ) -> None:
        """The same for several pieces, each of which stays one where the protocol knows pieces."""

    def hold(self, *, full: bool) -> None:
        """Read no more of the request for now, or go on: its taker is full."""

    def over(self, *, closes: bool, lingers: bool) -> None:
        """The exchange is through. `closes`: the client is to ask nothing more here. `lingers`: more of its request is to
        come, which is read for a while, so that it gets to see what we wrote."""

    def cut(self, code: int) -> None:
        """Break off behind what was sent, so that the client sees that something is lacking."""

    def failed(self, fault: BaseException) -> None:
        """Something of ours has failed."""

    def soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        """Have this done in a moment, together with that of others: what all of them wait for is written once."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done; a fault in it ends the connection."""


def _nobody(_: RecorderInterface) -> RecordingInterface:
    raise AssertionError("there is no recorder")


_SILENT = RecordingGuard(None, "", _nobody)


class LaneExchange:
    """One request, until it is through."""

    # Nothing that is set later is the class's at first: CPython then finds it three times as slowly.

    def __init__(self, desk: Downstream, asked: LaneRequest) -> None:
        self.desk = desk
        self.asked = asked
        self.engine = desk.engine
        self.tape = _SILENT
        self.asking = True
        """Whether more of the request is to come."""

        self.over = False
        self.refused = False
        """Whether it was answered in the upstream's place with a problem, which may still have to be kept."""

        self.catching_up = False
        """Whether nothing more is taken in until others have had their turn."""

    # What the client tells

    @property
    def accepts(self) -> bool:
        """Whether it takes in its request: only then it is told more of it."""
        return self.asking and not self.refused

    def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    def take(self, go: bytes, pieces: Sequence[bytes]) -> None:
        """More of the request: what may go on, and its payload, of which the last piece may go on only with the end."""
        raise NotImplementedError

    def take_end(self, end: bytes, trailers: Headers) -> None:
        """The request is whole; `end` completes it."""
        raise NotImplementedError

    def take_whole(self, body: bytes) -> None:
        """All of its body, of known length, has come at once."""
        self.take(b"", (body,))
        if self.accepts:
            self.take_end(body, ())

    def room(self, *, full: bool) -> None:
        """The client takes no more for now, or more again."""

    def overdue(self, now: float) -> None:
        """Look at the time."""

    def abandon(self, outcome: Outcome, why: str) -> None:
        """The client is gone, or something of ours has failed."""
        if not self.over:
            self.over = True
            self.tape.closed(outcome, why)
            self.release(keep=False)

    def release(self, *, keep: bool) -> None:
        """Let go of what the exchange holds."""

    # What all of them do

    def begin_tape(self, *, gathers: bool = False) -> None:
        """From here on, what happens is told. `gathers`: nothing of the request goes on before it is whole."""
        asked = self.asked
        if self.engine.config.mode_of(asked.target.host, asked.named) == "passthrough":
            return

        def begin(recorder: RecorderInterface) -> RecordingInterface:
            return recorder.begin(
                run=asked.identity.run,
                run_evidence=asked.identity.evidence,
                step=asked.identity.step,
                actor=asked.identity.actor,
                method=asked.method,
                url=asked.url,
                http_version=self.desk.version,
                headers=asked.headers,
                gathers=gathers,
            )

        self.tape = RecordingGuard(self.engine.recorder, asked.identity.run, begin)

    def once_kept(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Go on when all that was told is kept: with `otherwise` where it could not be, and had to."""
        if self.tape.guarded:
            self.desk.soon(self._settle, then, otherwise)
        else:
            then()

    def _settle(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        if self.over:
            return
        if not self.tape.guarded or self.tape.kept_now():
            then()
        else:
            self.meanwhile()
            self.desk.later(self._settle_later(then, otherwise))

    async def _settle_later(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        kept = await self.tape.kept()
        if not self.over:
            then() if kept else otherwise()

    def meanwhile(self) -> None:
        """It takes longer: send what need not wait."""

    def paced(self, passed: int) -> None:
        """So many bytes have passed at once. Who sends that much lets others have their turn.

        What they have told is written behind what this one has: where the recorder falls behind, it waits until it is not.
        And libuv would read 32 times from one connection before it looks at the next one.
        """
        if passed < MUCH or self.catching_up:
            return
        if self.tape.behind:
            self._hold_back()
            self.desk.later(self._until_written())
        elif passed >= A_LOT:
            self._hold_back()
            self.desk.soon(self._take_turn)

    def _hold_back(self) -> None:
        self.catching_up = True
        self.regulate()

    async def _until_written(self) -> None:
        await self.tape.kept()
        self._take_turn()

    def _take_turn(self) -> None:
        self.catching_up = False
        if not self.over:
            self.regulate()

    def regulate(self) -> None:
        """Read from both sides or do not, as `catching_up` and their own states have it."""

    def refuse(self, problem: Problem, outcome: Outcome = "refused") -> None:
        """Answer in the upstream's place, and say in the record that it was us."""
        self.refused = True
        self.engine.config.counts[f"errors/{problem.code}"] += 1
        headers, body = problem.headers, problem.body if self.asked.method != "HEAD" else b""
        if self.asking and self.desk.version == "HTTP/1.1":
            headers = (*headers, ("Connection", "close"))
        told = self.desk.head(problem.status, problem.reason, headers)
        self.tape.response(told.status, told.reason, told.version, headers)
        self.tape.data("response", body)
        self.tape.ended("response")
        self.tape.closed(outcome, problem.detail)

        def refused() -> None:
            self.desk.send(told, body, last=True)
            self.finish(keep=False)

        self.once_kept(refused, refused)

    def finish(self, *, keep: bool, closes: bool = False) -> None:
        """The answer is out. What is still to come of the request is swallowed."""
        self.over = True
        if self.tape.open:
            self.tape.closed("refused", "the exchange was given up")
        self.release(keep=keep and not self.asking)
        self.desk.over(closes=closes or self.asked.closes, lingers=self.asking)

    def cut(self, code: int = BROKEN) -> None:
        """Break off on both sides."""
        self.over = True
        self.tape.closed("refused", "the exchange was given up")
        self.release(keep=False)
        self.desk.cut(code)
