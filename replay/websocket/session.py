"""Replay a WebSocket, and tell its client where it leaves the record."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import members
from calls.keys.divergence import AbsentValue, Difference, same
from calls.keys.key import keyed
from calls.keys.profile import Profiles
from calls.model import ChunkKind, Exchange, Json, Request
from calls.placeholder import MARK
from calls.redaction.declared import Unreadable
from calls.redaction.redactor import Redactor
from calls.websocket_messages import opening, value
from replay import playback
from replay.answer import Answer, Dialogue, Frame
from replay.misses import explain
from replay.misses.explain import ReplayedRequest
from replay.misses.miss import Miss, Nearest
from replay.misses.nearest import SHOWN
from replay.pacing import Pace
from replay.reframing.id_rewrite import unnamed
from replay.script import RecordedExchange, Script
from replay.websocket.conversations import Lanes, played_back
from replay.websocket.timeline import Break, WebsocketDialogue

CODE: Final = 4424
"""The close code of a miss (RFC 6455 7.4.2: for private use). No SDK connects again after it; 1011 and its like, they do."""

_REASON: Final = 123
"""RFC 6455 5.5: a control frame has 125 bytes, and two of them are the code."""

_AGAIN: Final = "record the run again: playhead record -- CMD"


_REMEMBERED: Final = 1 << 20
"""So many bytes that a client has said are kept for the case that another recorded socket of the same opening was meant."""


class Switchboard:
    """The WebSockets of one replay that are open.

    When a client opens several alike, nothing but what it says over them tells which is which. So each gets the next recorded one;
    where its client says something else than was recorded, and another one fits all that was said, that one goes on: one that
    nobody has, or one of a socket that can go on with ours.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._open: list[Socket] = []

    def opened(self, socket: "Socket") -> None:
        """One more."""
        self._open.append(socket)

    def closed(self, socket: "Socket") -> None:
        """One less."""
        if socket in self._open:
            self._open.remove(socket)

    def trade(self, asking: "Socket") -> RecordedExchange | None:
        """Another recorded one that fits; None where there is none."""
        if (free := self._script.trade(asking.recorded, asking.fits)) is not None:
            return free
        for other in self._open:
            theirs = other.recorded
            if theirs.key == asking.recorded.key and asking.fits(theirs) and other.takes(asking.recorded):
                return theirs
        return None


class Socket:
    """A WebSocket of a recording (`Dialogue` in answer.py)."""

    def __init__(
        self,
        recorded: RecordedExchange,
        profiles: Profiles,
        pace: Pace,
        *,
        missed: Callable[[RecordedExchange, Break], Miss],
        drifted: Callable[[RecordedExchange, list[str]], None],
        exchange: Switchboard,
    ) -> None:
        """`missed` notes a miss and gives it back."""
        self.recorded = recorded
        self._profiles = profiles
        self._pace = pace
        self._missed = missed
        self._drifted = drifted
        self._exchange = exchange
        self._dialect = keyed(opening(recorded.exchange.request), profiles).dialect
        self._heard: list[tuple[ChunkKind, bytes]] | None = []
        self._told: list[Frame] = []
        self._room = _REMEMBERED
        self._played = self._playing(recorded)

    def answer(self, mark: tuple[str, str]) -> Answer:
        """The upgrade and what follows it."""
        exchange = self.recorded.exchange
        assert exchange.response is not None
        return Answer(
            status=101,
            reason=exchange.response.reason,
            headers=(*playback.headers(exchange.response, whole=False), mark),
            at=self._pace.at(exchange.first_byte_at),
            dialogue=self,
        )

    def begin(self) -> list[Frame]:
        """It is open."""
        self._exchange.opened(self)
        return self._telling(self._played.begin())

    def hear(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """The client has said this."""
        if kind == "close":
            self._exchange.closed(self)
        elif self._heard is not None:
            self._heard.append((kind, data))
            self._room -= len(data)
            if self._room < 0:
                self._heard, self._told = None, []
        return self._telling(self._played.hear(kind, data))

    def stayed(self) -> list[Frame]:
        """It has not left."""
        return self._played.stayed()

    def left(self) -> None:
        """It is gone without a goodbye."""
        self._exchange.closed(self)
        self._played.left()

    def fits(self, one: RecordedExchange) -> bool:
        """Whether another recorded one goes with all that was said here."""
        return self._would_have_told(one) is not None

    def takes(self, one: RecordedExchange) -> bool:
        """Go on with another recorded one, if nothing that was said here tells them apart."""
        said = self._would_have_told(one)
        if said is None or len(said) != len(self._told):
            return False
        self._go_on_with(one)
        return True

    def _playing(self, recorded: RecordedExchange) -> WebsocketDialogue | Lanes:
        return played_back(
            recorded.exchange,
            self._profiles,
            self._pace,
            broken=self._broken,
            drifted=lambda places: self._drifted(recorded, places),
        )

    def _telling(self, frames: list[Frame]) -> list[Frame]:
        if self._heard is not None:
            self._told += [frame for frame in frames if frame.kind in _MESSAGES]
        return frames

    def _broken(self, where: Break) -> list[Frame]:
        if where.why in ("no_match", "consumed") and (other := self._exchange.trade(self)) is not None:
            return self._go_on_with(other)
        self._exchange.closed(self)
        return refusal(self._missed(self.recorded, where), where, self._dialect)

    def _go_on_with(self, other: RecordedExchange) -> list[Frame]:
        """Take up another recorded one where we are; what is still to be told."""
        self.recorded, self._played = other, self._playing(other)
        frames = self._replayed(self._played)
        told = [frame for frame in frames if frame.kind in _MESSAGES]
        return [*told[len(self._told) :], *(frame for frame in frames[-1:] if frame.kind not in _MESSAGES)]

    def _replayed(self, played: WebsocketDialogue | Lanes) -> list[Frame]:
        """All that is told upon what was heard here."""
        heard = self._heard or ()
        return [*played.begin(), *(frame for message in heard for frame in played.hear(*message))]

    def _would_have_told(self, one: RecordedExchange) -> list[Frame] | None:
        """The messages of another one upon all that was heard; None where it does not go with them, and with what was told."""
        if self._heard is None or one.lacking or not playback.is_websocket(one.exchange):
            return None
        broken: list[Break] = []

        def noted(where: Break) -> list[Frame]:
            broken.append(where)
            return []

        played = played_back(one.exchange, self._profiles, self._pace, broken=noted, drifted=lambda _: None)
        told = [frame for frame in self._replayed(played) if frame.kind in _MESSAGES]
        alike = len(told) >= len(self._told) and all(map(_alike, told, self._told))
        return told if alike and not broken else None


_MESSAGES: Final = ("text", "binary")


def _alike(one: Frame, other: Frame) -> bool:
    """Whether two messages of the server say the same, but for ids and times: else it would have two tongues."""
    return one.kind == other.kind and same(unnamed(value(one.data)), unnamed(value(other.data)))


def opened(exchange: Exchange) -> Exchange:
    """The exchange as its opening alone: all that is known of a request for a WebSocket when it comes."""
    asked = opening(exchange.request)
    return exchange if asked is exchange.request else replace(exchange, request=asked)


def miss(asked: ReplayedRequest, recorded: RecordedExchange, where: Break) -> Miss:
    """Why a client that left the record is not answered."""
    if where.why == "client_left":
        return explain.left_socket(asked, recorded, where.number)
    if where.why == "incomplete":
        return explain.stayed(asked, recorded)
    what = f"message {where.number} of {asked.words}"
    detail = (
        f"{what} is not what the client of step {recorded.step} of run {asked.run} said: it differs at {_places(where)}."
        if where.why == "no_match"
        else f"{what} came when the client of step {recorded.step} of run {asked.run} had said all that it said."
    )
    shown, more = tuple(map(_readable, where.differences[:SHOWN])), len(where.differences[SHOWN:])
    return Miss(
        replay=asked.replay,
        run=asked.run,
        reason=where.why,
        asked=what,
        detail=detail,
        fix=_AGAIN,
        key=recorded.key,
        number=asked.number,
        nearest=Nearest(call=recorded.id, step=recorded.step, differences=shown, more=more),
    )


_MARK: Final = MARK.decode()
_PLACEHOLDER_END: Final = re.compile(r"[A-Z2-7]{2,}(?![a-z0189])")
_BINARY: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Characters that no text has: what holds one are bytes that happen to be UTF-8."""


def _readable(difference: Difference) -> Difference:
    """A difference as a person may read it: of bytes how many there are, and their digest."""
    now = _without_piece_of_secret(difference.recorded, difference.now)
    return replace(difference, recorded=_without_bytes(difference.recorded), now=_without_bytes(now))


def _without_piece_of_secret(recorded: Json | AbsentValue, now: Json | AbsentValue) -> Json | AbsentValue:
    """What the client said, with asterisks where a placeholder begins or goes on in the recording.

    A secret that a client sends in pieces is only known when all of them have come: of one piece nothing tells but the place.
    """
    if not isinstance(recorded, str) or not isinstance(now, str):
        return now
    if _PLACEHOLDER_END.match(recorded):
        return "*" * len(now)
    at = next((at for at in range(len(recorded)) if _begins_placeholder(recorded[at:])), len(recorded))
    return now[:at] + "*" * len(now[at:]) if now[:at] == recorded[:at] else now


def _begins_placeholder(text: str) -> bool:
    return text.startswith((_MARK, "*")) or _MARK.startswith(text)


def _without_bytes(value: Json | AbsentValue) -> Json | AbsentValue:
    if isinstance(value, str) and _BINARY.search(value):
        data = value.encode("utf-8", "surrogatepass")
        return f"{len(data)} bytes, sha256:{hashlib.sha256(data).hexdigest()[:16]}…"
    return value


def _places(where: Break) -> str:
    return ", ".join(difference.place or "all of it" for difference in where.differences[:3])


def refusal(why: Miss, where: Break, dialect: str) -> list[Frame]:
    """An error as this API tells it, and a goodbye with the reason."""
    data = CODE.to_bytes(2) + reason(why, where).encode()
    error = _error(why, where, dialect)
    told = [Frame(kind="text", data=dumps(error))] if error else []
    return [*told, Frame(kind="close", data=data)]


def reason(why: Miss, where: Break) -> str:
    """Why, in as many bytes as a goodbye may have."""
    places = f" differs at {_places(where)}" if where.differences else ""
    told = {
        "no_match": f"playhead: replay_miss: message {where.number} is not the recorded one{places}",
        "consumed": f"playhead: replay_miss: message {where.number} is one more than was recorded",
    }.get(why.reason, f"playhead: replay_miss: {why.reason}: nothing more was recorded, and the client stayed")
    return told.encode()[:_REASON].decode(errors="ignore")


def _error(why: Miss, where: Break, dialect: str) -> dict[str, Json]:
    error: dict[str, Json] = {
        "type": "replay_miss",
        "code": why.reason,
        "message": f"{why.detail} To mend it: {why.fix}",
    }
    said = members(where.message)
    match dialect:
        case "openai_realtime":
            told = {**error, "param": None, "event_id": said.get("event_id")}
            return {"type": "error", "event_id": f"event_playhead_{where.number}", "error": told}
        case "openai_responses_socket":
            lane = {"stream_id": said["stream_id"]} if "stream_id" in said else {}
            return {"type": "error", "status": 424, "error": {**error, "param": None}, **lane}
        case "gemini_live":
            # Google has no message for it. Its SDK takes what it does not know for an error, and looks for these.
            return {"code": 424, "status": "FAILED_PRECONDITION", "message": error["message"], "error": error}
        case _:
            return {}


class RedactedDialogue:
    """A dialogue that hears what the recorder would have kept, so that a secret matches its placeholder."""

    def __init__(self, inner: Dialogue, redactor: Redactor) -> None:
        self._inner = inner
        self._redactor = redactor
        self.begin, self.stayed, self.left = inner.begin, inner.stayed, inner.left

    def hear(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """The client has said this."""
        return self._inner.hear(kind, data if kind == "close" else self._seen(data))

    def _seen(self, data: bytes) -> bytes:
        try:
            return self._redactor.message(data)[0]
        except Unreadable:
            # The recorder kept nothing of such a message either.
            return b""


def redacting(given: Answer | None, request: Request, redactor: Redactor) -> Answer | None:
    """The answer to a request, where what follows it hears without secrets."""
    if given is None or given.dialogue is None:
        return given
    redactor = redactor.of(request.method, request.url, request.headers)
    return replace(given, dialogue=RedactedDialogue(given.dialogue, redactor))
