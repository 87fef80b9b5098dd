"""Keep the order within each of several conversations over one WebSocket.

OpenAI's Responses API names the conversation in `stream_id`, Cartesia and ElevenLabs in `context_id`. A client may choose
another name each time: a name that was not recorded stands for the first conversation that starts with the same message.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from calls.codec.lenient_json import as_object, as_text
from calls.keys.divergence import Difference
from calls.keys.profile import Profiles
from calls.model import ChunkKind, Exchange
from calls.websocket_messages import message_value
from replay.answer import Frame
from replay.pacing import Pace
from replay.websocket.timeline import Break, Turn, WebsocketDialogue, recorded_turns

type Broken = Callable[[Break], list[Frame]]
type Drifted = Callable[[list[str]], None]


def replay_dialogue(
    exchange: Exchange, profiles: Profiles, pace: Pace, *, on_break: Broken, on_drift: Drifted
) -> "WebsocketDialogue | ConversationsDialogue":
    """Replay a recorded WebSocket with one or several conversations."""
    kind = ConversationsDialogue if _names_in(exchange.request.body.data) else WebsocketDialogue
    return kind(exchange, profiles, pace, on_break=on_break, on_drift=on_drift)


class ConversationsDialogue:
    """The replay of one WebSocket with several conversations (implements `Dialogue`)."""

    def __init__(
        self, exchange: Exchange, profiles: Profiles, pace: Pace, *, on_break: Broken, on_drift: Drifted
    ) -> None:
        turns_by_name: dict[str, list[Turn]] = {"": []}
        for turn in recorded_turns(exchange):
            turns_by_name.setdefault(_conversation_name(turn.data), []).append(turn)
        self._exchange = exchange
        self._profiles = profiles
        self._pace = pace
        self._on_break = on_break
        self._turns_by_name = turns_by_name
        self._dialogues = {name: self._new_dialogue(name, self._break_once, on_drift) for name in turns_by_name}
        self._recorded_names = {"": ""}
        """The recorded name of a conversation by the name that the client uses."""

        self._ends: dict[str, Frame] = {}
        self._message_count = 0
        self._differences: tuple[Difference, ...] = ()
        """How the last conversation that began differs from the first recorded one it might have been."""

        self._is_over = False

    def begin(self) -> list[Frame]:
        """Return the frames before the first message of the client."""
        return [
            frame for name in self._dialogues for frame in self._with_common_end(name, self._dialogues[name].begin())
        ]

    def receive(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """Handle a message of the client in its conversation."""
        if self._is_over:
            return []
        if kind == "close":
            return self._close(data)
        self._message_count += 1
        name = self._recorded_name(_conversation_name(data), kind, data)
        self._dialogues[name].message_count = self._message_count - 1
        return list(self._with_common_end(name, self._dialogues[name].receive(kind, data)))

    def answer_waiting_client(self) -> list[Frame]:
        """Handle a client that is still connected after all conversations have ended."""
        return self._dialogues[""].answer_waiting_client() if len(self._ends) == len(self._dialogues) else []

    def note_client_left(self) -> None:
        """Handle a client that disconnected without a close frame."""
        for lane in self._dialogues.values():
            lane.note_client_left()

    def _new_dialogue(self, name: str, on_break: Broken, on_drift: Drifted) -> WebsocketDialogue:
        conversation_turns = self._turns_by_name[name]
        return WebsocketDialogue(
            self._exchange,
            self._profiles,
            self._pace,
            on_break=on_break,
            on_drift=on_drift,
            conversation_turns=conversation_turns,
        )

    def _close(self, data: bytes) -> list[Frame]:
        for name, lane in self._dialogues.items():
            if name:
                lane.note_client_left()
        frames = self._dialogues[""].receive("close", data)
        self._is_over = True
        return frames

    def _recorded_name(self, current_name: str, kind: ChunkKind, data: bytes) -> str:
        """The recorded name of a conversation; empty if no recorded conversation starts with this message."""
        if current_name not in self._recorded_names:
            free = [name for name in self._dialogues if name not in self._recorded_names.values()]
            fitting = (
                name
                for name in sorted(free, key=lambda name: name != current_name)
                if self._can_begin(name, kind, data)
            )
            self._differences = ()
            self._recorded_names[current_name] = next(fitting, current_name if current_name in free else "")
        return self._recorded_names[current_name]

    def _can_begin(self, name: str, kind: ChunkKind, data: bytes) -> bool:
        breaks: list[Break] = []

        def note_break(where: Break) -> list[Frame]:
            breaks.append(where)
            return []

        lane = self._new_dialogue(name, note_break, lambda _: None)
        lane.begin()
        lane.receive(kind, data)
        self._differences = self._differences or tuple(one for where in breaks for one in where.differences)
        return not breaks

    def _with_common_end(self, name: str, frames: list[Frame]) -> Iterator[Frame]:
        """The frames of one conversation. Only the last conversation to end ends the WebSocket."""
        for frame in frames:
            if frame.kind not in ("wait", "cut"):
                self._is_over |= frame.kind == "close"
                yield frame
                continue
            self._ends[name] = frame
            if len(self._ends) == len(self._dialogues):
                yield frame

    def _break_once(self, where: Break) -> list[Frame]:
        """Report that the client left the record, once."""
        if self._is_over:
            return []
        self._is_over = True
        number = self._message_count + 1 if where.reason == "client_left" else self._message_count
        differences = self._differences if where.reason == "consumed" else where.differences
        return self._on_break(replace(where, number=number, differences=differences))


_NAMES: Final = ("stream_id", "context_id")
"""The members that name a conversation."""


def _names_in(data: bytes) -> list[str]:
    return [name for name in _NAMES if f'"{name}"'.encode() in data]


def _conversation_name(data: bytes) -> str:
    names = _names_in(data)
    fields = as_object(message_value(data)) if names else {}
    return next((text for name in names if (text := as_text(fields.get(name)))), "")
