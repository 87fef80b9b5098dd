"""Take out of a script what a browser does not need: comments, indentation and spaces. Names and statements stay as they are.

The page has no build step: this is done when the files are loaded. It reads JavaScript as far as it must, to leave strings, regular
expressions and templates alone; of templates of HTML, the indentation goes, which has no meaning there.
"""

import re
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<space>\s+)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[\w$]+)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REGEX: Final = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
_TEMPLATE_TEXT: Final = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*", re.DOTALL)
_INDENTATION: Final = re.compile(r"[ \t]*\n\s*")

_BEFORE_REGEX: Final = frozenset(("return", "typeof", "case", "in", "of", "await"))
"""Words after which a slash begins a regular expression. After any other word, or a closing bracket, it divides."""


class UnknownScript(ValueError):
    """A script has a form that this module does not know."""


@dataclass(slots=True)
class _Writer:
    parts: list[str] = field(default_factory=list)
    last: str = "\n"
    """The piece before."""

    space: str = ""
    """White space since then: nothing, a space, or the end of a line."""

    def add(self, piece: str, *, is_text: bool = False) -> None:
        """Add a piece; before it, the white space that is needed."""
        if self.space and not is_text and (space := self._needed_space(piece[0])):
            self.parts.append(space)
        self.parts.append(piece)
        self.last, self.space = piece, ""

    def _needed_space(self, following: str) -> str:
        before = self.last[-1]
        if self.space == "\n":
            return "" if before in "\n{([," or following in ")],}" else "\n"
        are_words = _is_word(before) and _is_word(following)
        return " " if are_words or (before == following and before in "+-") or (before, following) == ("/", "/") else ""


def _is_word(char: str) -> bool:
    return char.isalnum() or char in "_$"


def squeeze_script(text: str) -> str:
    """Return a script that does the same and is shorter. Raises UnknownScript."""
    writer = _Writer()
    end = _squeeze_code(text, 0, writer)
    if end != len(text):
        raise UnknownScript(f"a bracket is closed at {end} that was not opened")
    return "".join(writer.parts) + "\n"


def _squeeze_code(text: str, at: int, writer: _Writer) -> int:
    """Squeeze code up to its end, or up to the brace that closes a value of a template; return its place."""
    depth = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise UnknownScript(f"nothing is known that begins at {at}")
        kind, piece = found.lastgroup, found[0]
        at = found.end()
        if kind in ("comment", "space"):
            # A comment that ends a line is followed by that end.
            writer.space = "\n" if "\n" in piece or writer.space == "\n" else " "
        elif piece == "`":
            at = _squeeze_template(text, at, writer)
        elif piece == "/" and _begins_regex(writer.last):
            if (regex := _REGEX.match(text, at - 1)) is None:
                raise UnknownScript(f"a regular expression does not end that begins at {at}")
            writer.add(regex[0])
            at = regex.end()
        else:
            depth += (piece == "{") - (piece == "}")
            if depth < 0:
                return at - 1
            writer.add(piece)
    return at


def _begins_regex(before: str) -> bool:
    return before in _BEFORE_REGEX or not (_is_word(before[-1]) or before[-1] in ")]}`\"'")


def _squeeze_template(text: str, at: int, writer: _Writer) -> int:
    """Squeeze a template after its first quote; return the place after its last."""
    is_html = writer.last == "html"
    writer.add("`")
    while True:
        found = _TEMPLATE_TEXT.match(text, at)
        assert found is not None, "it matches nothing, too"
        at = found.end()
        if found[0]:
            writer.add(_INDENTATION.sub("\n", found[0]) if is_html else found[0], is_text=True)
        if text.startswith("`", at):
            writer.add("`", is_text=True)
            return at + 1
        if not text.startswith("${", at):
            raise UnknownScript(f"a template does not end at {at}")
        writer.add("${", is_text=True)
        at = _squeeze_code(text, at + 2, writer)
        if not text.startswith("}", at):
            raise UnknownScript("a value of a template does not end")
        writer.space = ""
        writer.add("}", is_text=True)
        at += 1
