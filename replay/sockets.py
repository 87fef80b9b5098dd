"""A WebSocket of a recording as an answer, and what its client is told where it leaves the record."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from calls.json import dumps
from calls.key import keyed
from calls.messages import opening
from calls.model import ChunkKind, Exchange, Json
from calls.profile import Profiles
from calls.redact import Redactor
from calls.shape import members
from replay import explain, playback
from replay.answer import Answer, Dialogue, Frame
from replay.explain import Asked
from replay.frames import Break, Played
from replay.miss import Miss, Nearest
from replay.nearest import SHOWN
from replay.pacing import Pace
from replay.script import Recorded

CODE: Final = 4424
"""The close code of a miss (RFC 6455 7.4.2: for private use). No SDK connects again after it; 1011 and its like, they do."""

_REASON: Final = 123
"""RFC 6455 5.5: a control frame has 125 bytes, and two of them are the code."""

_AGAIN: Final = "record the run again: playhead record -- CMD"


def answer(
    recorded: Recorded,
    profiles: Profiles,
    pace: Pace,
    mark: tuple[str, str],
    *,
    missed: Callable[[Break], Miss],
    drifted: Callable[[list[str]], None],
) -> Answer:
    """The upgrade and what follows it. `missed` notes a miss and gives it back."""
    exchange = recorded.exchange
    assert exchange.response is not None
    dialect = keyed(opening(exchange.request), profiles).dialect

    def broken(where: Break) -> list[Frame]:
        return refusal(missed(where), where, dialect)

    return Answer(
        status=101,
        reason=exchange.response.reason,
        headers=(*playback.headers(exchange.response, whole=False), mark),
        at=pace.at(exchange.first_byte_at),
        dialogue=Played(exchange, profiles, pace, broken=broken, drifted=drifted),
    )


def opened(exchange: Exchange) -> Exchange:
    """The exchange as its opening alone: all that is known of a request for a WebSocket when it comes."""
    asked = opening(exchange.request)
    return exchange if asked is exchange.request else replace(exchange, request=asked)


def miss(asked: Asked, recorded: Recorded, where: Break) -> Miss:
    """Why a client that left the record is not answered."""
    if where.why == "client_left":
        return explain.left(asked, recorded)
    if where.why == "incomplete":
        return explain.stayed(asked, recorded)
    what = f"message {where.number} of {asked.words}"
    detail = (
        f"{what} is not what the client of step {recorded.step} of run {asked.run} said: it differs at {_places(where)}."
        if where.why == "no_match"
        else f"{what} came when the client of step {recorded.step} of run {asked.run} had said all that it said."
    )
    shown, more = where.differences[:SHOWN], len(where.differences[SHOWN:])
    return Miss(
        replay=asked.replay,
        run=asked.run,
        reason=where.why,
        asked=what,
        detail=detail,
        fix=_AGAIN,
        key=recorded.key,
        number=asked.number,
        nearest=Nearest(call=recorded.exchange.id, step=recorded.step, differences=shown, more=more),
    )


def _places(where: Break) -> str:
    return ", ".join(difference.pointer or "all of it" for difference in where.differences[:3])


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


class Redacted:
    """A dialogue that hears what the recorder would have kept, so that a secret matches its placeholder."""

    def __init__(self, inner: Dialogue, redactor: Redactor) -> None:
        self._inner = inner
        self._redactor = redactor
        self.begin, self.stayed, self.left = inner.begin, inner.stayed, inner.left

    def hear(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """The client has said this."""
        return self._inner.hear(kind, data if kind == "close" else self._redactor.whole(data)[0])


def redacting(given: Answer | None, redactor: Redactor) -> Answer | None:
    """The answer, where what follows it hears without secrets."""
    if given is None or given.dialogue is None:
        return given
    return replace(given, dialogue=Redacted(given.dialogue, redactor))
