"""Regular expressions with known beginnings, which a scanner of streams needs.

A pattern is a sequence of parts. Besides matching it whole, a scanner must see that the text so far may be its
*beginning*, to hold that tail back until the next piece shows. From the same parts come both expressions.
"""

from dataclasses import dataclass
from functools import reduce

JOINT = "~"
"""Stands in a `Word` for what joins the words of a name, if anything does: `api~key` is apikey, api_key, api-key and "api key"."""


@dataclass(frozen=True, slots=True)
class Word:
    """One of several literal texts."""

    texts: tuple[str, ...]
    nocase: bool = False

    @property
    def full(self) -> str:
        return self._with_case("|".join("".join(map(_char, text)) for text in self.texts))

    @property
    def part(self) -> str:
        """Its proper beginnings; `a(?:b)?` for `abc`."""
        return self._with_case("|".join(_beginnings(text) for text in self.texts if len(text) > 1))

    def _with_case(self, inner: str) -> str:
        return f"(?i:{inner})" if self.nocase else f"(?:{inner})" if inner else ""


@dataclass(frozen=True, slots=True)
class Some:
    """From `least` to `most` bytes of a character class."""

    chars: str
    least: int
    most: int

    @property
    def full(self) -> str:
        return f"{self.chars}{{{self.least},{self.most}}}"

    @property
    def part(self) -> str:
        return f"{self.chars}{{1,{self.least - 1}}}" if self.least > 1 else ""


@dataclass(frozen=True, slots=True)
class Either:
    """One of several sequences."""

    ways: "tuple[tuple[Part, ...], ...]"

    @property
    def full(self) -> str:
        return f"(?:{'|'.join(full(way) for way in self.ways)})"

    @property
    def part(self) -> str:
        return f"(?:{'|'.join(beginnings(way) for way in self.ways)})"


type Part = Word | Some | Either


def full(parts: tuple[Part, ...]) -> str:
    """The expression for the whole pattern."""
    return "".join(part.full for part in parts)


def beginnings(parts: tuple[Part, ...]) -> str:
    """The expression for every beginning of the pattern, up to the whole.

    Of parts that may be empty it also matches nothing at all; so the first part must not be one. The rest is written
    once for each part: the size of the automaton is what a scan costs.
    """
    return reduce(lambda rest, part: _part_beginnings(part, rest), reversed(parts), "")


def _part_beginnings(part: Part, rest: str) -> str:
    ways = [part.full + (f"(?:{rest})?" if rest else ""), part.part]
    return "|".join(way for way in ways if way)


def _char(char: str) -> str:
    if char == JOINT:
        return r"[_\- ]?"
    return char if char.isalnum() or char == "_" else f"\\x{ord(char):02x}"


def _beginnings(text: str) -> str:
    return reduce(lambda rest, char: _char(char) + (f"(?:{rest})?" if rest else ""), reversed(text[:-1]), "")
