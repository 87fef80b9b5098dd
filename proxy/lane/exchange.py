"""What the lane does with every request: tell it, answer in the upstream's place where that is due, and end it."""

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, Protocol

from calls.model import Headers, Outcome
from proxy.lane.admission import Asked
from proxy.mitm.engine import Engine
from proxy.mitm.problem import Problem
from proxy.mitm.tape import Recorder, Recording, Tape

MUCH: Final = 4 << 10
"""Bytes in one piece, of which a fast sender sends one after the other."""

A_LOT: Final = 64 << 10


class Desk(Protocol):
    """The client's connection, as its exchanges see it."""

    engine: Engine
    full: bool
    """Whether the client takes no more for now."""

    def write(self, data: bytes) -> None:
        """Send to the client."""

    def hold(self, *, full: bool) -> None:
        """Read no more of the request for now, or go on: its taker is full."""

    def go_on(self) -> None:
        """The exchange takes in more of its request again."""

    def over(self, *, closes: bool, lingers: bool) -> None:
        """The exchange is through. `closes`: so is the connection. `lingers`: it is, but read on for a while, so that the
        client gets to see what we wrote."""

    def cut(self) -> None:
        """Break the connection off, so that the client sees that something is lacking."""

    def soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        """Have this done in a moment, together with that of others: what all of them wait for is written once."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done; a fault in it ends the connection."""


def _nobody(_: Recorder) -> Recording:
    raise AssertionError("there is no recorder")


_SILENT = Tape(None, "", _nobody)


class Exchange:
    """One request, until it is through."""

    version: ClassVar = "HTTP/1.1"

    # What is so with every one at first belongs to all of them: to set it for each costs more than to ask for it.

    tape: Tape = _SILENT
    asking: bool = True
    """Whether more of the request is to come."""

    over: bool = False
    refused: bool = False
    """Whether it was answered in the upstream's place with a problem, which may still have to be kept."""

    catching_up: bool = False
    """Whether nothing more is taken in until others have had their turn."""

    def __init__(self, desk: Desk, asked: Asked) -> None:
        self.desk = desk
        self.asked = asked
        self.engine = desk.engine

    # What the client's connection tells

    @property
    def accepts(self) -> bool:
        """Whether it takes in its request just now."""
        return self.asking and not self.refused

    def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    def feed(self, data: bytes) -> bytes:
        """More of the request, which is not over; return what does not belong to it. Raises Malformed."""
        raise NotImplementedError

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

        def begin(recorder: Recorder) -> Recording:
            return recorder.begin(
                run=asked.identity.run,
                run_evidence=asked.identity.evidence,
                step=asked.identity.step,
                actor=asked.identity.actor,
                method=asked.method,
                url=asked.url,
                http_version=self.version,
                headers=asked.headers,
                gathers=gathers,
            )

        self.tape = Tape(self.engine.recorder, asked.identity.run, begin)

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

    def meanwhile(self) -> None:
        """It takes longer: send what need not wait."""

    async def _settle_later(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        kept = await self.tape.kept()
        if not self.over:
            then() if kept else otherwise()

    def refuse(self, problem: Problem, outcome: Outcome = "refused") -> None:
        """Answer in the upstream's place, and say in the record that it was us."""
        self.refused = True
        self.engine.config.counts[f"errors/{problem.code}"] += 1
        headers, body = self.refusal(problem), problem.body if self.asked.method != "HEAD" else b""
        self.tape.response(problem.status, problem.reason, self.version, headers)
        self.tape.data("response", body)
        self.tape.ended("response")
        self.tape.closed(outcome, problem.detail)

        def refused() -> None:
            self.send_refusal(problem, headers, body)
            self.finish(keep=False)

        self.once_kept(refused, refused)

    def refusal(self, problem: Problem) -> Headers:
        """The fields of such an answer."""
        return problem.headers if not self.asking else (*problem.headers, ("Connection", "close"))

    def send_refusal(self, problem: Problem, headers: Headers, body: bytes) -> None:
        """Send it."""
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self.desk.write(f"HTTP/1.1 {problem.status} {problem.reason}\r\n{fields}\r\n".encode() + body)

    def finish(self, *, keep: bool, closes: bool = False) -> None:
        """The answer is out. What is still to come of the request is swallowed."""
        self.over = True
        if self.tape.open:
            self.tape.closed("refused", "the exchange was given up")
        self.release(keep=keep and not self.asking)
        self.desk.over(closes=closes or self.asked.closes, lingers=self.asking)

    def cut(self) -> None:
        """Break off on both sides."""
        self.over = True
        self.tape.closed("refused", "the exchange was given up")
        self.release(keep=False)
        self.desk.cut()
