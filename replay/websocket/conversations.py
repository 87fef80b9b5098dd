"""Keep the order of each of several conversations over one WebSocket.

OpenAI's Responses name the conversation in `stream_id`. A client may call it otherwise each time: a name that was not recorded is
that of the first conversation that begins so.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from calls.codec.lenient_json import members, text
from calls.keys.profile import Profiles
from calls.model import ChunkKind, Exchange
from calls.websocket_messages import value
from replay.answer import Frame
from replay.pacing import Pace
from replay.websocket.timeline import Break, Turn, WebsocketDialogue, turns

type Broken = Callable[[Break], list[Frame]]
type Drifted = Callable[[list[str]], None]


def played_back(
    exchange: Exchange, profiles: Profiles, pace: Pace, *, broken: Broken, drifted: Drifted
) -> "WebsocketDialogue | Lanes":
    """A recorded WebSocket, with one conversation or several."""
    kind = Lanes if b'"stream_id"' in exchange.request.body.data else WebsocketDialogue
    return kind(exchange, profiles, pace, broken=broken, drifted=drifted)


class Lanes:
    """One WebSocket of several conversations while it is replayed."""

    def __init__(self, exchange: Exchange, profiles: Profiles, pace: Pace, *, broken: Broken, drifted: Drifted) -> None:
        said: dict[str, list[Turn]] = {"": []}
        for turn in turns(exchange):
            said.setdefault(_lane(turn.data), []).append(turn)
        self._exchange = exchange
        self._profiles = profiles
        self._pace = pace
        self._broken = broken
        self._said = said
        self._lanes = {name: self._playing(name, self._once, drifted) for name in said}
        self._named = {"": ""}
        """What the client calls them now, and what they were called."""

        self._ends: dict[str, Frame] = {}
        self._number = 0
        self._over = False

    def begin(self) -> list[Frame]:
        """What the server says first."""
        return [frame for name in self._lanes for frame in self._going_on(name, self._lanes[name].begin())]

    def hear(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """The client has said this: what follows upon it in its conversation."""
        if self._over:
            return []
        if kind == "close":
            return self._parted(data)
        self._number += 1
        name = self._recorded(_lane(data), kind, data)
        self._lanes[name].number = self._number - 1
        return list(self._going_on(name, self._lanes[name].hear(kind, data)))

    def stayed(self) -> list[Frame]:
        """The client has not left."""
        return self._lanes[""].stayed() if len(self._ends) == len(self._lanes) else []

    def left(self) -> None:
        """The client is gone without a word."""
        for lane in self._lanes.values():
            lane.left()

    def _playing(self, name: str, broken: Broken, drifted: Drifted) -> WebsocketDialogue:
        said = self._said[name]
        return WebsocketDialogue(self._exchange, self._profiles, self._pace, broken=broken, drifted=drifted, said=said)

    def _parted(self, data: bytes) -> list[Frame]:
        for name, lane in self._lanes.items():
            if name:
                lane.left()
        frames = self._lanes[""].hear("close", data)
        self._over = True
        return frames

    def _recorded(self, now: str, kind: ChunkKind, data: bytes) -> str:
        """What the conversation was called; the one without a name where there is none that begins so."""
        if now not in self._named:
            free = [name for name in self._lanes if name not in self._named.values()]
            fitting = (name for name in sorted(free, key=lambda name: name != now) if self._begins(name, kind, data))
            self._named[now] = next(fitting, now if now in free else "")
        return self._named[now]

    def _begins(self, name: str, kind: ChunkKind, data: bytes) -> bool:
        broken: list[Break] = []

        def noted(where: Break) -> list[Frame]:
            broken.append(where)
            return []

        lane = self._playing(name, noted, lambda _: None)
        lane.begin()
        lane.hear(kind, data)
        return not broken

    def _going_on(self, name: str, frames: list[Frame]) -> Iterator[Frame]:
        """The frames of one conversation; the end is that of the last one."""
        for frame in frames:
            if frame.kind not in ("wait", "cut"):
                self._over |= frame.kind == "close"
                yield frame
                continue
            self._ends[name] = frame
            if len(self._ends) == len(self._lanes):
                yield frame

    def _once(self, where: Break) -> list[Frame]:
        """A client leaves the record but once."""
        if self._over:
            return []
        self._over = True
        number = self._number + 1 if where.why == "client_left" else self._number
        return self._broken(replace(where, number=number))


def _lane(data: bytes) -> str:
    return text(members(value(data)).get("stream_id")) if b'"stream_id"' in data else ""
