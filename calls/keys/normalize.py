"""Normalize values that an API reads in several spellings: names in two cases, schemas, bytes in base64.

Every function here is a fold of a profile (`calls.keys.profile.Folds`), and total: what it cannot read it leaves as it came.
"""

import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from calls.keys.rules import At, Node
from calls.model import Json

_SNAKE: Final = re.compile(r"(?<=[A-Za-z0-9])_+([a-z0-9])")


@lru_cache(maxsize=1024)
def camel(name: str) -> str:
    """A name in camelCase."""
    return _SNAKE.sub(lambda match: match[1].upper(), name) if "_" in name else name


class Names:
    """A walk that writes names in camelCase where they are the API's own; `note` is told of each that was another."""

    def __init__(self, note: Callable[[At], None]) -> None:
        self._note = note

    def visit(self, value: Json, node: Node | None, at: At, *, on: bool = False) -> Json:
        """The value in that spelling. Folds say where it begins (`names`) and where it ends (`own`, `schema`)."""
        if node is not None:
            on = (on or "names" in node.folds) and not node.folds & _OWN
        if not on and (node is None or not (node.named or node.each or node.typed)):
            return value
        match value:
            case dict():
                return self._members(value, node, at, on=on)
            case list():
                return [self.visit(item, _below(node, i, item), (at, i), on=on) for i, item in enumerate(value)]
            case _:
                return value

    def _members(self, value: dict[str, Json], node: Node | None, at: At, *, on: bool) -> Json:
        members: dict[str, Json] = {}
        for name, item in value.items():
            # Both spellings at once are two members: nobody can tell which one the API takes.
            now = camel(name) if on and camel(name) not in value else name
            if now != name:
                self._note((at, name))
            members[now] = self.visit(item, _below(node, now, item), (at, now), on=on)
        return members


_OWN: Final = frozenset(("own", "schema"))


def _below(node: Node | None, step: str | int, value: Json) -> Node | None:
    return node.below(step, value) if node else None


def schema(value: Json) -> Json:
    """An OpenAPI schema with its keywords in camelCase and its types in capitals. Names of properties are the user's own."""
    if not isinstance(value, dict):
        return value
    return {camel(name): _keyword(camel(name), item) for name, item in value.items()}


def _keyword(name: str, value: Json) -> Json:
    match value:
        case str() if name == "type":
            return value.upper()
        case dict() if name in ("properties", "defs", "$defs"):
            return {own: schema(item) for own, item in value.items()}
        case dict() if name in ("items", "additionalProperties", "not"):
            return schema(value)
        case list() if name in ("anyOf", "allOf", "oneOf", "prefixItems"):
            return [schema(item) for item in value]
        case list() if name == "type":
            return [_keyword(name, item) for item in value]
        case _:
            return value


_DATA_URL: Final = re.compile(r"data:([^,;]*)(?:;[^,;]+)*;base64,", re.IGNORECASE)
_URL_SAFE: Final[Mapping[int, int]] = str.maketrans("-_", "+/")


def digested(text: str) -> str:
    """The digest of bytes that come in base64 (either alphabet, with padding or without) or as a data URL, whose media type stays."""
    url = _DATA_URL.match(text)
    data = _decoded(text[url.end() :] if url else text)
    if data is None:
        return text
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return f"data:{url[1].lower()};{digest}" if url else digest


def _decoded(text: str) -> bytes | None:
    plain = text.translate(_URL_SAFE).rstrip("=")
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4), strict_mode=True) if plain else None
    except (binascii.Error, UnicodeEncodeError, ValueError):
        return None
