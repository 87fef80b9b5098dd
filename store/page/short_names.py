"""Give the names that a script declares short ones.

A name is changed everywhere in its file or not at all, so that scopes do not matter. It stays as it is where it is exported. Names of
properties stay: `{ name }` becomes `{ name: a }`.
"""

import itertools
import string
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

from store.page.script_tokens import Token

_DECLARING: Final = frozenset(("const", "let", "function", "class"))
_BEFORE_BLOCK: Final = frozenset((")", "=>", "else", "try", "finally", "do", ";", "{", "}", "block"))
"""Tokens after which a brace opens a block. After others it opens an object, a pattern, a class or a list of names."""

_OPENING: Final = {"(": ")", "[": "]", "{": "}", "${": "}"}
_KEYWORDS: Final = frozenset(
    [
        "async",
        "await",
        "break",
        "case",
        "catch",
        "class",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "else",
        "export",
        "extends",
        "false",
        "finally",
        "for",
        "from",
        "function",
        "get",
        "if",
        "import",
        "in",
        "instanceof",
        "let",
        "new",
        "null",
        "of",
        "return",
        "set",
        "static",
        "super",
        "switch",
        "this",
        "throw",
        "true",
        "try",
        "typeof",
        "undefined",
        "var",
        "void",
        "while",
        "with",
        "yield",
        "as",
    ]
)


def shorten_names(tokens: list[Token]) -> list[Token]:
    """Return the tokens with short names."""
    code = [(place, piece) for place, piece in enumerate(tokens) if piece.kind not in ("space", "text")]
    names = _Names([piece for _, piece in code])
    changed = list(tokens)
    for number, (place, _) in enumerate(code):
        if (written := names.written_name(number)) is not None:
            changed[place] = Token("word", written)
    return changed


type _Use = Literal["property", "import", "shorthand", "name"]


class _Names:
    def __init__(self, code: list[Token]) -> None:
        self.code = code
        self._texts = ["" if one.kind in ("string", "regex") else one.text for one in code]
        self._contexts = list(self._find_contexts())
        self._imports = set(self._find_imports())
        self._uses = [self._use(place) if one.kind == "word" else None for place, one in enumerate(code)]
        declared = set(self._find_declared()) | {self._texts[one] for one in self._imports}
        self._shorts = self._choose(declared - _KEYWORDS - set(self._find_exported()))

    def written_name(self, place: int) -> str | None:
        """Return what is written in place of a token; None if it stays."""
        name, use = self._texts[place], self._uses[place]
        short = self._shorts.get(name)
        if short is None or use is None or use == "property":
            return None
        return {"import": f"{name} as {short}", "shorthand": f"{name}:{short}", "name": short}[use]

    def _choose(self, names: set[str]) -> dict[str, str]:
        uses = Counter((self._texts[place], use) for place, use in enumerate(self._uses))
        words = {one.text for one in self.code if one.kind == "word"}
        free = (name for name in _short_names() if name not in words)
        shorts = {}
        for name, count in Counter({name: uses[name, "name"] for name in sorted(names)}).most_common():
            costs = count * (2 - len(name)) + 3 * uses[name, "shorthand"] + 6 * uses[name, "import"]
            if costs < 0:
                shorts[name] = next(free)
        return shorts

    def _use(self, place: int) -> _Use:
        before, following = self._text(place - 1), self._text(place + 1)
        if before in (".", "?.") or following == "as":
            return "property"
        if place in self._imports:
            return "import"
        if self._contexts[place] == "{" and before in ("{", ",", "}", "async", "get", "static"):
            if following in (":", "("):
                return "property"
            if following in (",", "}", "="):
                return "shorthand"
        return "name"

    def _text(self, place: int) -> str:
        return self._texts[place] if 0 <= place < len(self._texts) else ""

    def _find_exported(self) -> Iterator[str]:
        for place, text in enumerate(self._texts):
            if text == "export":
                following = [self._text(place + distance) for distance in (1, 2, 3, 4)]
                declaring = next((at for at, one in enumerate(following[:3]) if one in _DECLARING), None)
                if declaring is not None:
                    yield following[declaring + 1]

    def _find_contexts(self) -> Iterator[str]:
        stack: list[str] = []
        for place, text in enumerate(self._texts):
            if text in ("}", ")", "]"):
                stack.pop()
            yield stack[-1] if stack else ""
            if text in _OPENING:
                is_block = text == "{" and self._text(place - 1) in _BEFORE_BLOCK
                stack.append("block" if is_block else text)

    def _find_imports(self) -> Iterator[int]:
        is_inside = False
        for place, text in enumerate(self._texts):
            if text == "import" and self._text(place + 1) == "{":
                is_inside = True
            elif text == "}":
                is_inside = False
            elif is_inside and self.code[place].kind == "word" and "as" not in self._texts[place - 1 : place + 2]:
                yield place

    def _find_declared(self) -> Iterator[str]:
        for place, text in enumerate(self._texts):
            if text in _DECLARING:
                if self._text(place + 1) in ("[", "{"):
                    yield from self._find_pattern(place + 1)
                else:
                    yield self._text(place + 1)
                if text == "function":
                    yield from self._find_pattern(place + 2)
            elif text == "as" and self._text(place + 2) in (",", "}"):
                yield self._text(place + 1)
            elif text == "catch":
                yield from self._find_pattern(place + 1)
            elif text == "=>":
                if self._text(place - 1) == ")":
                    yield from self._find_pattern(self._find_opening(place - 1))
                else:
                    yield self._text(place - 1)

    def _find_opening(self, place: int) -> int:
        depth = 0
        for one in range(place, -1, -1):
            depth += (self._texts[one] in (")", "]", "}")) - (self._texts[one] in _OPENING)
            if depth == 0:
                return one
        return 0

    def _find_pattern(self, opening: int) -> Iterator[str]:
        """Yield the names that a list of parameters or an array declares."""
        depth = 0
        for place in range(opening, len(self._texts)):
            text = self._texts[place]
            depth += (text in _OPENING) - (text in (")", "]", "}"))
            if depth == 0:
                return
            if self._uses[place] == "shorthand" or (
                self._uses[place] == "name" and self._text(place - 1) in ("(", "[", ",", "...", ":")
            ):
                yield text


def _short_names() -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_letters, repeat=length):
            name = "".join(letters)
            if name not in _KEYWORDS:
                yield name
