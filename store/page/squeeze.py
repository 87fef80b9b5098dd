"""Take out of a script what a browser does not need: comments, indentation, spaces, and the length of names.

The page has no build step: this is done when a file is first asked for. It reads JavaScript as far as it must, to leave strings,
regular expressions and texts alone. Of templates of HTML goes what has no meaning there: indentation, quotes around words, and names in closing
tags. `short_names` shortens names.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from store.page.script_tokens import Token, UnknownScript, read_tokens
from store.page.short_names import shorten_names

__all__ = ["UnknownScript", "squeeze_script"]

_QUOTED: Final = re.compile(r'(?<=[\w-])="([\w.#:-]+)"(?=[\s>]|$)')
_INDENTATION: Final = re.compile(r"[ \t]*\n\s*")
_OPENING: Final = ("(", "[", "{", "${")
_CLOSING: Final = (")", "]", "}")
_NOTHING: Final = Token("space", "")
_EDGE: Final = re.compile(r"^\s*\n\s*|\s*\n\s*$")


def squeeze_script(text: str) -> str:
    """Return a script that does the same and is shorter. Raises UnknownScript."""
    tokens = read_tokens(text)
    is_html = [place > 0 and tokens[place - 1].text == "html" for place in range(len(tokens))]
    return _write(_drop_words(shorten_names(tokens)), is_html)


def _drop_words(tokens: list[Token]) -> list[Token]:
    """Declare constants that follow each other in one statement, and take the brackets off a function's only parameter.

    The tokens that go become empty spaces, so that all others keep their places.
    """
    changed = list(tokens)
    code = [(place, piece) for place, piece in enumerate(tokens) if piece.kind not in ("space", "text")]
    statements = [""]
    """The word that began the statement, at each depth of brackets. Empty where it is not certain."""
    for number, (place, piece) in enumerate(code):
        before = code[number - 1][1].text if number else ";"
        if piece.text == "const" and before in (";", "{", "}"):
            if before == ";" and statements[-1] == "const":
                changed[code[number - 1][0]], changed[place] = Token("other", ","), _NOTHING
            statements[-1] = "const"
        elif before == ";" or (
            place and "\n" in tokens[place - 1].text and statements[-1] == "const" and _may_end(before)
        ):
            statements[-1] = ""
        if piece.text in _OPENING and piece.kind in ("other", "value"):
            statements.append("")
        elif piece.text in _CLOSING and piece.kind in ("other", "value-end"):
            statements.pop()
        if _is_name_in_brackets(code, number):
            for bracket in (number, number + 2):
                changed[code[bracket][0]] = _NOTHING
    return changed


def _may_end(before: str) -> bool:
    """Whether a statement may end after this token where a line ends."""
    return before[-1] in "_$)]}`\"'" or before[-1].isalnum()


def _is_name_in_brackets(code: Sequence[tuple[int, Token]], number: int) -> bool:
    """Whether `(name) =>` begins here, and needs no space without its brackets."""
    texts = [piece.text for _, piece in code[number : number + 4]]
    before = code[number - 1][1].text if number else ";"
    return (
        len(texts) == 4
        and texts[0] == "("
        and texts[2:] == [")", "=>"]
        and code[number + 1][1].kind == "word"
        and not is_word(before[-1])
    )


class _Template(NamedTuple):
    """A template that is being written."""

    is_html: bool
    is_in_tag: bool = False


def _write(tokens: Sequence[Token], is_html: Sequence[bool]) -> str:
    """`is_html` says of each token whether it would begin a template of HTML."""
    parts: list[str] = []
    space, last = "", "\n"
    templates: list[_Template] = []
    closing = 0
    for place, piece in enumerate(tokens):
        if closing:
            closing += (piece.kind == "value") - (piece.kind == "value-end")
            continue
        if piece.kind == "space":
            space = "\n" if "\n" in piece.text or space == "\n" else " "
            continue
        written = piece.text
        if piece.kind == "text" and templates[-1].is_html:
            written, is_in_tag = _squeeze_html(written, is_in_tag=templates[-1].is_in_tag)
            templates[-1] = _Template(True, is_in_tag)
        elif piece.kind == "template":
            templates.append(_Template(is_html[place]))
        elif piece.kind == "template-end":
            templates.pop()
        elif piece.kind == "value" and templates[-1].is_html and last.endswith("</"):
            # htm closes what is open with `<//>`, whatever its name.
            closing, written = 1, "/"
        if piece.text in _CLOSING and piece.kind == "other" and (last == "," or (last == ";" and piece.text == "}")):
            parts.pop()
        elif space and piece.kind not in ("text", "value", "value-end", "template-end"):
            # `single_file` knows imports and exports by the beginnings of their lines.
            is_module_line = piece.text in ("import", "export") and "\n" in space
            parts.append("\n" if is_module_line else _needed_space(space, last[-1], written[0]))
        space = ""
        if written:
            parts.append(written)
            last = written
    return "".join(parts) + "\n"


def _squeeze_html(text: str, *, is_in_tag: bool) -> tuple[str, bool]:
    """Squeeze a text of a template; return it, and whether it ends within a tag."""
    parts = []
    at = 0
    while at < len(text):
        end = text.find(">" if is_in_tag else "<", at)
        is_whole = end >= 0
        part = text[at : end + 1 if is_whole else len(text)]
        if is_in_tag:
            part = _INDENTATION.sub("\n", _QUOTED.sub(r"=\1", part))
        else:
            # htm drops line ends at both ends of a text.
            marked = part[:-1] if is_whole else part
            part = _INDENTATION.sub("\n", _EDGE.sub("", marked)) + part[len(marked) :]
        parts.append(part)
        at += len(text[at : end + 1 if is_whole else len(text)])
        is_in_tag = is_in_tag != is_whole
    return "".join(parts), is_in_tag


def _needed_space(space: str, before: str, following: str) -> str:
    if space == "\n":
        return "" if before in "\n{([,;" or following in ")],}" else "\n"
    are_words = is_word(before) and is_word(following)
    return " " if are_words or (before == following and before in "+-") or (before, following) == ("/", "/") else ""


def is_word(char: str) -> bool:
    """Whether a character may be in a name."""
    return char.isalnum() or char in "_$"
