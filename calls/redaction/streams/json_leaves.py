"""List the strings, numbers and literals of a JSON text with their positions.

The values are not decoded: secrets are replaced in the raw bytes, and the pieces of a text are escaped exactly as the whole
text would be.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_DEPTH: Final = 32
"""Texts that are nested deeper are not read."""

STRING: Final = rb'(?:[^"\\]++|\\.)*+'
OTHER: Final = rb'\[[-+.0-9eE, \t\r\n]*+\]|[^ \t\r\n{}\[\],:"]++'
"""A number or a literal, or a list of numbers as one value, such as the bytes of a token."""

STRING_IN_LINE: Final = rb'(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+'
OTHER_IN_LINE: Final = rb'\[[-+.0-9eE, ]*+\]|[^ \x00-\x1f{}\[\],:"]++'
"""The same without the control characters that JSON forbids in strings and that may separate messages."""

_TOKEN: Final = re.compile(rb'[ \t\r\n]*+(?:([{}\]:,])|(%s)|(\[)|"(%s)(\\?+"?))' % (OTHER, STRING), re.DOTALL)
_PUNCTUATION, _OTHER, _LIST, _ENDED_STRING = 1, 2, 3, 5

type Path = tuple[bytes | int, ...]


class Leaf(NamedTuple):
    """A string, number or literal."""

    path: Path
    start: int
    end: int
    is_string: bool
    """Whether the span is the content between quotes."""


class NotJson(ValueError):
    """The bytes are not a JSON text."""


def find_leaves(data: bytes, start: int, end: int, *, is_cut: bool = False) -> list[Leaf]:
    """Return the leaves of a JSON text in order. `is_cut`: the text may end anywhere, even within a string. Raises NotJson."""
    leaves: list[Leaf] = []
    path: list[bytes | int] = []
    wants_name = has_begun = False
    at = start
    for token in _TOKEN.finditer(data, start, end):
        low, high = token.span()
        if low != at or (has_begun and not path):
            raise NotJson
        at = high
        group = token.lastindex
        if group == _ENDED_STRING:
            low, stop = token.span(4)
            if high != stop + 1 and not is_cut:
                raise NotJson
            if wants_name:
                path[-1], wants_name = data[low:stop], False
                continue
            leaves.append(Leaf(tuple(path), low, stop, True))
        elif group == _OTHER and not wants_name:
            leaves.append(Leaf(tuple(path), *token.span(_OTHER), False))
        elif group == _LIST and not wants_name:
            path.append(0)
        elif group == _PUNCTUATION:
            wants_name = _follow(data[high - 1], path, has_begun=has_begun, wants_name=wants_name)
        else:
            raise NotJson
        has_begun = True
        if len(path) > MAX_DEPTH:
            raise NotJson
    if data[at:end].strip() or (not is_cut and (path or not has_begun)):
        raise NotJson
    return leaves


def _follow(mark: int, path: list[bytes | int], *, has_begun: bool, wants_name: bool) -> bool:
    """Update the path for a punctuation mark; return whether a member's name is next. Raises NotJson."""
    if mark == ord("{"):
        if wants_name or (has_begun and not path):
            raise NotJson
        path.append(b"")
        return True
    if not path:
        raise NotJson
    last = path[-1]
    if mark == ord(","):
        path[-1] = b"" if isinstance(last, bytes) else last + 1
        return isinstance(last, bytes)
    if mark != ord(":"):
        if isinstance(last, bytes) != (mark == ord("}")):
            raise NotJson
        path.pop()
    return False


def ancestor_paths(path: Path) -> Iterator[Path]:
    """Return the paths of the containers of a leaf, from the outermost."""
    return (path[:depth] for depth in range(len(path)))
