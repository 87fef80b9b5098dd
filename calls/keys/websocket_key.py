"""Select the key fields of a client's WebSocket messages one by one, as the key of the whole WebSocket does."""

from collections.abc import Mapping

import msgspec

from calls import placeholder
from calls.codec.canonical import canonical_parsed_json
from calls.codec.json import dumps
from calls.keys.key_selection import Selection, pointer_to
from calls.keys.profile import Profiles
from calls.keys.rules import rule_tree
from calls.model import Json, Request
from calls.route import route_request


class KeyedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message and its key fields."""

    message: Json
    selected_fields: Json
    text: bytes
    """The key fields as canonical JSON."""

    left_out: tuple[str, ...]
    """Pointers to the fields of the message that do not count, except those left out by design."""

    ids: Mapping[str, str]
    """The ids that count by their first occurrence: their number in the key and their value."""


_EXPECTED_RULES = frozenset(("secret", "null", "nonce", "default"))


class Conversation:
    """The client's messages of one WebSocket. An id keeps its number for all messages."""

    def __init__(self, opening: Request, profiles: Profiles) -> None:
        self._profile = profiles.find(route_request(opening))
        self._selection = Selection(keep_unknown=self._profile.unknown == "key")

    def key_message(self, message: Json) -> KeyedMessage | None:
        """Select the key fields of the next message; None if it does not count."""
        plan, selection, notes = self._profile.plan, self._selection, self._selection.notes
        left_out_before, ids_before = len(notes.left_out), len(notes.ids)
        value: Json = [message]
        if self._profile.folds.names:
            value = selection.normalize_names(value, plan.root, "")
        match selection.select_body(value, rule_tree(plan, value, dumps(value).__contains__), ""):
            case [selected]:
                text = canonical_parsed_json(selected).decode()
                left_out = (
                    pointer_to(at) for at, rule in notes.left_out[left_out_before:] if rule not in _EXPECTED_RULES
                )
                return KeyedMessage(
                    message=message,
                    selected_fields=selected,
                    text=placeholder.number_placeholders(text).encode(),
                    left_out=tuple(place.removeprefix("/0") for place in left_out),
                    ids={now: was for _, was, now in notes.ids[ids_before:]},
                )
            case _:
                return None
