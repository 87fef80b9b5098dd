"""Redact secrets that a profile declares by path: the body is parsed, while all other rules search bytes.

The paths are searched in the parsed document; their values are then located in the raw text, so that nothing else in it
changes. Everything below a path is secret: strings become placeholders, numbers as many nines.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from calls.placeholder import make_placeholder
from calls.redaction.scanning.scanner import Edit

if TYPE_CHECKING:
    from jsonpath import JSONPath

type Location = tuple[str | int, ...]

_TOKEN: Final = re.compile(rb'([{}\[\],:])|("(?:[^"\\]|\\.)*")|[^\s{}\[\],:"]+', re.DOTALL)
_ESCAPED: Final = b"\\u"


class UnreadableBody(ValueError):
    """A body in which a profile declares secrets is not valid JSON, so the secrets cannot be located."""


class DeclaredSecrets(msgspec.Struct, frozen=True):
    """The secret paths of a profile."""

    paths: tuple[str, ...]
    names: tuple[bytes, ...]
    """A name from each path: a body that contains none of them has no declared secret."""

    @classmethod
    def from_paths(cls, paths: Iterable[str]) -> "DeclaredSecrets":
        """Create it from the paths in a profile."""
        paths = tuple(paths)
        return cls(paths, tuple(map(_last_name, paths)))

    def find_edits(self, data: bytes, key: bytes) -> list[Edit]:
        """Return the edits that replace the secrets. Raises UnreadableBody."""
        if not data.lstrip().startswith((b"{", b"[")) or not self._can_be_in(data):
            return []
        paths = _parse_paths(self.paths)
        try:
            document = json.loads(data)
            found = {match.parts for path in paths for match in path.finditer(document)}
        except (ValueError, RecursionError) as error:
            raise UnreadableBody(
                f"a profile declares secrets in the body, and it is not valid JSON: {error}"
            ) from error
        return list(_leaf_edits(data, found, key)) if found else []

    def find_message_edits(self, data: bytes, key: bytes) -> list[Edit]:
        """Return the edits for one WebSocket message; paths refer to the list of all messages. Raises UnreadableBody."""
        if not data.lstrip().startswith((b"{", b"[")) or not self._can_be_in(data):
            return []
        return [Edit(at - 1, new) for at, new in self.find_edits(b"[" + data + b"]", key)]

    def _can_be_in(self, data: bytes) -> bool:
        return any(name in data for name in self.names) or _ESCAPED in data


@lru_cache(maxsize=256)
def _parse_paths(paths: tuple[str, ...]) -> tuple["JSONPath", ...]:
    # Imported only when a body may contain a declared secret: python-jsonpath takes long to import.
    from calls.keys.jsonpath import parse_path

    return tuple(map(parse_path, paths))


def _last_name(path: str) -> bytes:
    """Return the last name in a path; empty if the path has a filter, which may match several names."""
    names = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", path)
    return names[-1].encode() if names and "?" not in path else b""


def _leaf_edits(data: bytes, locations: "set[Location]", key: bytes) -> Iterator[Edit]:
    for location, start, stop in locate_leaves(data):
        if any(location[:depth] in locations for depth in range(len(location) + 1)):
            at, new = _replacement(data, start, stop, key)
            if new != data[at : at + len(new)]:
                yield Edit(at, new)


def _replacement(data: bytes, start: int, stop: int, key: bytes) -> tuple[int, bytes]:
    if data[start : start + 1] == b'"':
        return start + 1, make_placeholder(data[start + 1 : stop - 1], "J", key)
    return start, data[start:stop] if data[start:stop].isalpha() else b"9" * (stop - start)


def locate_leaves(data: bytes) -> Iterator[tuple[Location, int, int]]:
    """Yield the location and offsets of every string, number and literal of a valid JSON document."""
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
