"""List the strings, numbers and literals of a JSON text with their positions.

The values are not decoded: a secret is replaced in the bytes as they are, and a text that comes in pieces is, piece by piece,
escaped exactly as it would be in one.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

DEEPEST: Final = 32
"""A text that is nested deeper is not read."""

STRING: Final = rb'(?:[^"\\]++|\\.)*+'
OTHER: Final = rb'\[[-+.0-9eE, \t\r\n]*+\]|[^ \t\r\n{}\[\],:"]++'
"""A number or a literal, or a list of numbers as one: a token's bytes are as many as they are."""

_TOKEN: Final = re.compile(rb'[ \t\r\n]*+(?:([{}\]:,])|(%s)|(\[)|"(%s)(\\?+"?))' % (OTHER, STRING), re.DOTALL)
_PUNCTUATION, _OTHER, _LIST, _ENDED_STRING = 1, 2, 3, 5

type Path = tuple[bytes | int, ...]


class Leaf(NamedTuple):
    """A value that holds no others."""

    path: Path
    start: int
    end: int
    is_string: bool
    """Whether the span lies between quotes."""


class NotJson(ValueError):
    """These bytes are no JSON text."""


def leaves(data: bytes, start: int, end: int, *, is_cut: bool = False) -> list[Leaf]:
    """The leaves of one JSON text in their order. `is_cut`: it may stop anywhere, also within a string. Raises NotJson."""
    found: list[Leaf] = []
    path: list[bytes | int] = []
    wants_name = begun = False
    at = start
    for token in _TOKEN.finditer(data, start, end):
        low, high = token.span()
        if low != at or (begun and not path):
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
            found.append(Leaf(tuple(path), low, stop, True))
        elif group == _OTHER and not wants_name:
            found.append(Leaf(tuple(path), *token.span(_OTHER), False))
        elif group == _LIST and not wants_name:
            path.append(0)
        elif group == _PUNCTUATION:
            wants_name = _follow(data[high - 1], path, begun=begun, wants_name=wants_name)
        else:
            raise NotJson
        begun = True
        if len(path) > DEEPEST:
            raise NotJson
    if data[at:end].strip() or (not is_cut and (path or not begun)):
        raise NotJson
    return found


def _follow(mark: int, path: list[bytes | int], *, begun: bool, wants_name: bool) -> bool:
    """Follow a punctuation mark; whether a member's name is next. Raises NotJson."""
    if mark == ord("{"):
        if wants_name or (begun and not path):
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


def ancestors(path: Path) -> Iterator[Path]:
    """The paths of what holds this, from the outermost."""
    return (path[:depth] for depth in range(len(path)))
