"""Digest a client's messages over a WebSocket one by one, each as the key of them all counts it."""

from collections.abc import Mapping
from dataclasses import dataclass

from calls import placeholder
from calls.codec.canonical import canonical_parsed
from calls.codec.json import dumps
from calls.keys.key_selection import Selection, pointer
from calls.keys.profile import Profiles
from calls.keys.rules import tree
from calls.model import Json, Request
from calls.route import route_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedMessage:
    """A message, and what counts of it."""

    message: Json
    selected: Json
    text: bytes
    """What counts, canonical."""

    left_out: tuple[str, ...]
    """Pointers into the message of what does not count, but for what is the same in another spelling."""

    ids: Mapping[str, str]
    """The ids that count by where they occur first: what each counts as, and what it is."""


_BY_DESIGN = frozenset(("secret", "null", "nonce", "default"))


class Conversation:
    """One side's messages. An id keeps its place for as long as the WebSocket lives."""

    def __init__(self, opening: Request, profiles: Profiles) -> None:
        self._profile = profiles.find(route_of(opening))
        self._selection = Selection(keep_unknown=self._profile.unknown == "key")

    def take(self, message: Json) -> KeyedMessage | None:
        """The next message; None where it does not count."""
        plan, selection, notes = self._profile.plan, self._selection, self._selection.notes
        skipped, named = len(notes.skipped), len(notes.ids)
        value: Json = [message]
        if self._profile.folds.names:
            value = selection.named(value, plan.root, "")
        match selection.body(value, tree(plan, value, dumps(value)), ""):
            case [selected]:
                text = canonical_parsed(selected).decode()
                left_out = (pointer(at) for at, rule in notes.skipped[skipped:] if rule not in _BY_DESIGN)
                return KeyedMessage(
                    message=message,
                    selected=selected,
                    text=placeholder.fold(text).encode(),
                    left_out=tuple(place.removeprefix("/0") for place in left_out),
                    ids={now: was for _, was, now in notes.ids[named:]},
                )
            case _:
                return None
