"""Join objects and lists that are streamed in pieces."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from calls.codec.json import NotLossless, dumps, lenient, parse
from calls.codec.lenient_json import count, members, some, text
from calls.model import Json

_JOINED: Final = frozenset(("arguments", "input", "data", "transcript", "text", "summary"))
"""Members that come in pieces; all others are said whole."""


def payload(data: str) -> Mapping[str, Json]:
    """The object that a message's data should be; empty where it is none."""
    try:
        return members(lenient(data.encode("utf-8", "replace")))
    except NotLossless:
        return {}


def arguments_of(written: Json) -> Json:
    """The arguments of a tool call, which come as a text that holds JSON; the text as it came where it holds none."""
    try:
        return parse(written.encode()) if isinstance(written, str) else written
    except (NotLossless, UnicodeEncodeError):
        return written


class Record:
    """An object whose long texts come in pieces: `function_call`, `audio`, a tool call's `function`."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}

    def __getitem__(self, name: str) -> str | None:
        return some(self._state.get(name))

    def take(self, entry: Mapping[str, Json]) -> None:
        """Take what one delta says of it."""
        for name, value in entry.items():
            if name in _JOINED and value is not None:
                # Some servers send arguments as the object itself.
                piece = value if isinstance(value, str) else dumps(value).decode()
                self._pieces.setdefault(name, []).append(piece)
            elif name in ("id", "name", "type"):
                self._state[name] = self._state.get(name) or value
            elif value is not None:
                self._state[name] = value

    def whole(self) -> dict[str, Json]:
        """The object."""
        return {**self._state, **{name: "".join(pieces) for name, pieces in self._pieces.items()}}


class Entries:
    """A list: entries with an index are records in pieces (OpenRouter's `reasoning_details`), others just follow."""

    def __init__(self) -> None:
        self._entries: list[Json | Record] = []
        self._indexed: dict[tuple[int, str], Record] = {}

    def take(self, entries: Sequence[Json]) -> None:
        """Take what one delta says of it."""
        for entry in entries:
            place = count(members(entry).get("index"))
            if place is None:
                self._entries.append(entry)
                continue
            at = (place, text(members(entry).get("type")))
            if at not in self._indexed:
                self._indexed[at] = Record()
                self._entries.append(self._indexed[at])
            self._indexed[at].take(members(entry))

    def whole(self) -> Json:
        """The list."""
        return [entry.whole() if isinstance(entry, Record) else entry for entry in self._entries]


class PiecedObject:
    """An object that comes in pieces at any depth: the texts of some names are joined, entries with an index are
    continued, other lists go on, and everything else is said anew."""

    def __init__(self, joined: frozenset[str]) -> None:
        self._joined = joined
        self._members: dict[str, Json | _Words | PiecedObject | _Row] = {}

    def take(self, delta: Mapping[str, Json]) -> None:
        """Take what one delta says of it; null says nothing of what was said before."""
        for name, said in delta.items():
            match said:
                case str() if name in self._joined:
                    self._member(name, _Words).take(said)
                case Mapping():
                    self._member(name, lambda: PiecedObject(self._joined)).take(said)
                case list():
                    self._member(name, lambda: _Row(self._joined)).take(said)
                case None if name in self._members:
                    pass
                case _:
                    self._members[name] = said

    def whole(self) -> dict[str, Json]:
        """The object so far."""
        return {name: said.whole() if isinstance(said, _GROWING) else said for name, said in self._members.items()}

    def _member[T: (_Words, PiecedObject, _Row)](self, name: str, made: Callable[[], T]) -> T:
        new, member = made(), self._members.get(name)
        if type(member) is not type(new):
            self._members[name] = member = new
        return member


class _Words:
    """A text in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def take(self, piece: str) -> None:
        self._pieces.append(piece)

    def whole(self) -> Json:
        return "".join(self._pieces)


class _Row:
    """A list in pieces. An index only says which entry goes on; it is no part of it."""

    def __init__(self, joined: frozenset[str]) -> None:
        self._joined = joined
        self._loose: list[Json] = []
        self._entries: dict[int, PiecedObject] = {}

    def take(self, entries: list[Json]) -> None:
        for entry in entries:
            place = count(members(entry).get("index"))
            if place is None:
                self._loose.append(entry)
                continue
            rest = {name: said for name, said in members(entry).items() if name != "index"}
            self._entries.setdefault(place, PiecedObject(self._joined)).take(rest)

    def whole(self) -> Json:
        return [*self._loose, *(self._entries[place].whole() for place in sorted(self._entries))]


_GROWING: Final = (PiecedObject, _Words, _Row)
