"""Join objects and lists that are streamed in pieces."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from calls.codec.json import InvalidJson, dumps, parse_json, parse_json_leniently
from calls.codec.lenient_json import as_count, as_object, as_text, as_text_or_none
from calls.model import Json

_JOINED: Final = frozenset(("arguments", "input", "data", "transcript", "text", "summary"))
"""Members that arrive in pieces; all others arrive whole."""


def parse_payload(data: str) -> Mapping[str, Json]:
    """Parse the data of a message as an object; return an empty one if it is none."""
    try:
        return as_object(parse_json_leniently(data.encode("utf-8", "replace")))
    except InvalidJson:
        return {}


def parse_arguments(arguments: Json) -> Json:
    """Parse the arguments of a tool call, which are sent as JSON in a string; return a string that is no JSON unchanged."""
    try:
        return parse_json(arguments.encode()) if isinstance(arguments, str) else arguments
    except (InvalidJson, UnicodeEncodeError):
        return arguments


class Record:
    """An object whose long texts arrive in pieces: `function_call`, `audio`, a tool call's `function`."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}

    def __getitem__(self, name: str) -> str | None:
        return as_text_or_none(self._state.get(name))

    def add(self, entry: Mapping[str, Json]) -> None:
        """Add one delta."""
        for name, value in entry.items():
            if name in _JOINED and value is not None:
                # Some servers send arguments as the object itself.
                piece = value if isinstance(value, str) else dumps(value).decode()
                self._pieces.setdefault(name, []).append(piece)
            elif name in ("id", "name", "type"):
                self._state[name] = self._state.get(name) or value
            elif value is not None:
                self._state[name] = value

    def build(self) -> dict[str, Json]:
        """The object so far."""
        return {**self._state, **{name: "".join(pieces) for name, pieces in self._pieces.items()}}


class Entries:
    """A list: entries with an index are records in pieces (OpenRouter's `reasoning_details`), others are appended."""

    def __init__(self) -> None:
        self._entries: list[Json | Record] = []
        self._indexed: dict[tuple[int, str], Record] = {}

    def add(self, entries: Sequence[Json]) -> None:
        """Add one delta."""
        for entry in entries:
            place = as_count(as_object(entry).get("index"))
            if place is None:
                self._entries.append(entry)
                continue
            at = (place, as_text(as_object(entry).get("type")))
            if at not in self._indexed:
                self._indexed[at] = Record()
                self._entries.append(self._indexed[at])
            self._indexed[at].add(as_object(entry))

    def build(self) -> Json:
        """The list so far."""
        return [entry.build() if isinstance(entry, Record) else entry for entry in self._entries]


class PiecedObject:
    """An object that arrives in pieces at any depth: texts of some names are joined, list entries with an index are
    continued, other entries are appended, and anything else is replaced."""

    def __init__(self, joined: frozenset[str]) -> None:
        self._joined = joined
        self._members: dict[str, Json | _PiecedText | PiecedObject | _PiecedList] = {}

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add one delta; null does not replace an earlier value."""
        for name, value in delta.items():
            match value:
                case str() if name in self._joined:
                    self._member(name, _PiecedText).add(value)
                case Mapping():
                    self._member(name, lambda: PiecedObject(self._joined)).add(value)
                case list():
                    self._member(name, lambda: _PiecedList(self._joined)).add(value)
                case None if name in self._members:
                    pass
                case _:
                    self._members[name] = value

    def build(self) -> dict[str, Json]:
        """The object so far."""
        return {name: value.build() if isinstance(value, _GROWING) else value for name, value in self._members.items()}

    def _member[T: (_PiecedText, PiecedObject, _PiecedList)](self, name: str, create: Callable[[], T]) -> T:
        new, member = create(), self._members.get(name)
        if type(member) is not type(new):
            self._members[name] = member = new
        return member


class _PiecedText:
    """A text that arrives in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    def build(self) -> Json:
        return "".join(self._pieces)


class _PiecedList:
    """A list that arrives in pieces. An index only names the entry that continues; it is not part of it."""

    def __init__(self, joined: frozenset[str]) -> None:
        self._joined = joined
        self._loose: list[Json] = []
        self._entries: dict[int, PiecedObject] = {}

    def add(self, entries: list[Json]) -> None:
        for entry in entries:
            place = as_count(as_object(entry).get("index"))
            if place is None:
                self._loose.append(entry)
                continue
            rest = {name: value for name, value in as_object(entry).items() if name != "index"}
            self._entries.setdefault(place, PiecedObject(self._joined)).add(rest)

    def build(self) -> Json:
        return [*self._loose, *(self._entries[place].build() for place in sorted(self._entries))]


_GROWING: Final = (PiecedObject, _PiecedText, _PiecedList)
