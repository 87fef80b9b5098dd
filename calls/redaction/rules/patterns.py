"""Regular expressions with known beginnings, for scanning streams.

A pattern is a sequence of parts. Besides the whole pattern, a scanner must recognise that the end of the text may be a
*beginning* of it, to hold that tail back until the next piece arrives. Both expressions are built from the same parts.
"""

from collections.abc import Iterable
from functools import reduce

import msgspec

JOINT = "~"
"""Matches any separator or none between the words of a name in a `Word`: `api~key` is apikey, api_key, api-key, "api key"."""


class Word(msgspec.Struct, frozen=True):
    """One of several literal texts."""

    texts: tuple[str, ...]
    nocase: bool = False

    @property
    def expression(self) -> str:
        return self._with_case("|".join("".join(map(_escape_char, text)) for text in self.texts))

    @property
    def beginnings(self) -> str:
        """The expression for its proper beginnings: `a(?:b)?` for `abc`."""
        # As a tree: RE2 takes longer than linear time to compile an expression, and every worker waits for it.
        return self._with_case(_tree_expression(_tree_of_texts(text[:-1] for text in self.texts)))

    def _with_case(self, inner: str) -> str:
        return f"(?i:{inner})" if self.nocase else f"(?:{inner})" if inner else ""


class Repeat(msgspec.Struct, frozen=True):
    """From `least` to `most` bytes of a character class."""

    chars: str
    least: int
    most: int

    @property
    def expression(self) -> str:
        return f"{self.chars}{{{self.least},{self.most}}}"

    @property
    def beginnings(self) -> str:
        return f"{self.chars}{{1,{self.least - 1}}}" if self.least > 1 else ""


class Either(msgspec.Struct, frozen=True):
    """One of several sequences."""

    ways: "tuple[tuple[Part, ...], ...]"

    @property
    def expression(self) -> str:
        return f"(?:{'|'.join(full_expression(way) for way in self.ways)})"

    @property
    def beginnings(self) -> str:
        return f"(?:{'|'.join(beginnings_expression(way) for way in self.ways)})"


type Part = Word | Repeat | Either


def full_expression(parts: tuple[Part, ...]) -> str:
    """Return the expression for the whole pattern."""
    return "".join(part.expression for part in parts)


def beginnings_expression(parts: tuple[Part, ...]) -> str:
    """Return the expression for every beginning of the pattern, including the whole.

    The first part must not be one that may be empty, or the expression would match the empty string. The rest is written
    once for each part, because the cost of a scan is the size of the automaton.
    """
    return reduce(lambda rest, part: _part_beginnings(part, rest), reversed(parts), "")


def longest_repeat(parts: tuple[Part, ...]) -> int:
    """Return how often a part of the pattern may repeat at most."""
    return max((_longest_repeat(part) for part in parts), default=0)


def _longest_repeat(part: Part) -> int:
    match part:
        case Repeat():
            return part.most
        case Either():
            return max(longest_repeat(way) for way in part.ways)
        case Word():
            return 0


def _part_beginnings(part: Part, rest: str) -> str:
    ways = [part.expression + (f"(?:{rest})?" if rest else ""), part.beginnings]
    return "|".join(way for way in ways if way)


def _escape_char(char: str) -> str:
    if char == JOINT:
        return r"[_\- ]?"
    return char if char.isalnum() or char == "_" else f"\\x{ord(char):02x}"


type _Tree = dict[str, _Tree]


def _tree_of_texts(texts: Iterable[str]) -> _Tree:
    """Return the characters with which a text begins, each with those that follow it."""
    tree: _Tree = {}
    for text in texts:
        node = tree
        for char in text:
            node = node.setdefault(_escape_char(char), {})
    return tree


def _tree_expression(tree: _Tree) -> str:
    return "|".join(char + (f"(?:{_tree_expression(node)})?" if node else "") for char, node in tree.items())
