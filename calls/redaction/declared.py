"""Redact secrets that a profile declares by path: the body is parsed, where all other rules search bytes.

The paths are searched in the parsed document; what they name is then found again in the raw text, so that nothing else in
it changes. Below a path everything is secret: strings get placeholders, numbers become as many nines.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from calls.placeholder import make
from calls.redaction.scanning.scanner import Edit

if TYPE_CHECKING:
    from jsonpath import JSONPath

type Location = tuple[str | int, ...]

_TOKEN: Final = re.compile(rb'([{}\[\],:])|("(?:[^"\\]|\\.)*")|[^\s{}\[\],:"]+', re.DOTALL)
_ESCAPED: Final = b"\\u"


class Unreadable(ValueError):
    """A body in which a profile declares secrets is no JSON, so nobody can say where they are."""


@dataclass(frozen=True, slots=True)
class DeclaredSecrets:
    """The secret paths of a profile."""

    paths: tuple[str, ...]
    names: tuple[bytes, ...]
    """A part of each path that a body must hold: where it holds none of them, there is nothing to find."""

    @classmethod
    def of(cls, paths: Iterable[str]) -> "DeclaredSecrets":
        """The paths, as a profile writes them."""
        paths = tuple(paths)
        return cls(paths, tuple(map(_name, paths)))

    def edits(self, data: bytes, key: bytes) -> list[Edit]:
        """What to put in place of the secrets. Raises Unreadable."""
        if not data.lstrip().startswith((b"{", b"[")) or not self._may_be_in(data):
            return []
        paths = _read(self.paths)
        try:
            document = json.loads(data)
            found = {match.parts for path in paths for match in path.finditer(document)}
        except (ValueError, RecursionError) as error:
            raise Unreadable(
                f"a profile declares secrets in it, and it is no JSON that can be read: {error}"
            ) from error
        return list(_edits(data, found, key)) if found else []

    def edits_of_message(self, data: bytes, key: bytes) -> list[Edit]:
        """The same for one message of a WebSocket: the paths are about the list of all messages. Raises Unreadable."""
        if not data.lstrip().startswith((b"{", b"[")) or not self._may_be_in(data):
            return []
        return [Edit(at - 1, new) for at, new in self.edits(b"[" + data + b"]", key)]

    def _may_be_in(self, data: bytes) -> bool:
        return any(name in data for name in self.names) or _ESCAPED in data


@lru_cache(maxsize=256)
def _read(paths: tuple[str, ...]) -> tuple["JSONPath", ...]:
    # Only when a body may hold one: what reads paths takes long to import, and nobody's first request is to wait for it.
    from calls.keys.jsonpath import path_of

    return tuple(map(path_of, paths))


def _name(path: str) -> bytes:
    """The last name in a path; nothing where a filter may ask for several."""
    names = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", path)
    return names[-1].encode() if names and "?" not in path else b""


def _edits(data: bytes, found: "set[Location]", key: bytes) -> Iterator[Edit]:
    for location, start, stop in _leaves(data):
        if any(location[:depth] in found for depth in range(len(location) + 1)):
            at, new = _replacement(data, start, stop, key)
            if new != data[at : at + len(new)]:
                yield Edit(at, new)


def _replacement(data: bytes, start: int, stop: int, key: bytes) -> tuple[int, bytes]:
    if data[start : start + 1] == b'"':
        return start + 1, make(data[start + 1 : stop - 1], "J", key)
    return start, data[start:stop] if data[start:stop].isalpha() else b"9" * (stop - start)


def _leaves(data: bytes) -> Iterator[tuple[Location, int, int]]:
    """Every string, number and literal of a document that is known to be JSON, with where it is and where it stands."""
    steps: list[Any] = []
    objects: list[bool] = []
    key_next = False
    for token in _TOKEN.finditer(data):
        mark, string = token.groups()
        if mark in (b"{", b"["):
            key_next = mark == b"{"
            objects.append(key_next)
            steps.append(0)
        elif mark in (b"}", b"]"):
            objects.pop()
            steps.pop()
            key_next = False
        elif mark == b",":
            key_next = objects[-1]
            steps[-1] = 0 if key_next else steps[-1] + 1
        elif mark == b":":
            key_next = False
        elif key_next and string:
            steps[-1] = json.loads(string)
        else:
            yield tuple(steps), *token.span()
