"""Read JavaScript as tokens, as far as one must to tell code from strings, regular expressions and templates."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class UnknownScript(ValueError):
    """A script has a form that is not known here."""


class Token(NamedTuple):
    """A piece of a script. A template has texts and values, which begin and end with tokens of their own."""

    kind: str
    """space (or comment), word, other, string, regex, template, text, value, value-end, template-end."""

    text: str


_TOKEN: Final = re.compile(
    r"""
    (?P<space>(?:\s|//[^\n]*|/\*.*?\*/)+)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[\w$]+)
    |(?P<other>=>|\.\.\.|\?\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REGEX: Final = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
_TEXT: Final = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*", re.DOTALL)

_BEFORE_REGEX: Final = frozenset(("return", "typeof", "case", "in", "of", "await"))
"""Words after which a slash begins a regular expression. After any other word, or a closing bracket, it divides."""


def read_tokens(text: str) -> list[Token]:
    """Return the tokens of a script. Raises UnknownScript."""
    reader = _Reader(text)
    tokens = list(reader.read_code())
    if reader.at != len(text):
        raise UnknownScript(f"a bracket is closed at {reader.at} that was not opened")
    return tokens


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read_code(self) -> Iterator[Token]:
        """Read up to the end, or up to the brace that closes a value of a template."""
        depth = 0
        before = ""
        while self.at < len(self.text):
            found = _TOKEN.match(self.text, self.at)
            if found is None or found.lastgroup is None:
                raise UnknownScript(f"nothing is known that begins at {self.at}")
            piece = Token(found.lastgroup, found[0])
            if piece.text == "`":
                self.at += 1
                yield from self.read_template()
                before = "`"
                continue
            if piece.text == "/" and _begins_regex(before):
                piece = self.read_regex()
            elif piece.kind == "other":
                depth += (piece.text == "{") - (piece.text == "}")
                if depth < 0:
                    return
            self.at += len(piece.text)
            yield piece
            if piece.kind != "space":
                before = piece.text

    def read_regex(self) -> Token:
        """Read the regular expression that begins here."""
        found = _REGEX.match(self.text, self.at)
        if found is None:
            raise UnknownScript(f"a regular expression does not end that begins at {self.at}")
        return Token("regex", found[0])

    def read_template(self) -> Iterator[Token]:
        """Read a template after its first quote."""
        yield Token("template", "`")
        while True:
            found = _TEXT.match(self.text, self.at)
            if found is not None and found[0]:
                self.at = found.end()
                yield Token("text", found[0])
            if self.text.startswith("`", self.at):
                self.at += 1
                yield Token("template-end", "`")
                return
            if not self.text.startswith("${", self.at):
                raise UnknownScript(f"a template does not end at {self.at}")
            self.at += 2
            yield Token("value", "${")
            yield from self.read_code()
            if not self.text.startswith("}", self.at):
                raise UnknownScript("a value of a template does not end")
            self.at += 1
            yield Token("value-end", "}")


def _begins_regex(before: str) -> bool:
    if not before or before in _BEFORE_REGEX:
        return True
    last = before[-1]
    return not (last.isalnum() or last in "_$)]}`\"'")
