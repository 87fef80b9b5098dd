"""Normalize values that an API accepts in several spellings: names in two cases, schemas, bytes in base64.

Every function implements a fold of a profile (`calls.keys.profile.Folds`) and returns a value that it cannot read unchanged.
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
def camel_case(name: str) -> str:
    """Convert a name to camelCase."""
    return _SNAKE.sub(lambda match: match[1].upper(), name) if "_" in name else name


class NameNormalizer:
    """Converts the API's own names in a body to camelCase and calls `note` for each converted name."""

    def __init__(self, note: Callable[[At], None]) -> None:
        self._note = note

    def normalize(self, value: Json, node: Node | None, at: At, *, is_on: bool = False) -> Json:
        """Convert the names in a value. The folds of a node switch conversion on (`names`) and off (`own`, `schema`)."""
        if node is not None:
            is_on = (is_on or "names" in node.folds) and not node.folds & _USER_NAMED
        if not is_on and (node is None or not (node.by_name or node.wildcard or node.by_type)):
            return value
        match value:
            case dict():
                return self._normalize_members(value, node, at, is_on=is_on)
            case list():
                return [
                    self.normalize(item, _node_below(node, i, item), (at, i), is_on=is_on)
                    for i, item in enumerate(value)
                ]
            case _:
                return value

    def _normalize_members(self, value: dict[str, Json], node: Node | None, at: At, *, is_on: bool) -> Json:
        members: dict[str, Json] = {}
        for name, item in value.items():
            # If both spellings occur, they stay two members: it is unknown which one the API reads.
            now = camel_case(name) if is_on and camel_case(name) not in value else name
            if now != name:
                self._note((at, name))
            members[now] = self.normalize(item, _node_below(node, now, item), (at, now), is_on=is_on)
        return members


_USER_NAMED: Final = frozenset(("own", "schema"))


def _node_below(node: Node | None, step: str | int, value: Json) -> Node | None:
    return node.child(step, value) if node else None


def normalize_schema(value: Json) -> Json:
    """Write the keywords of an OpenAPI schema in camelCase and its types in capitals, but not the names of properties."""
    if not isinstance(value, dict):
        return value
    return {camel_case(name): _normalize_keyword(camel_case(name), item) for name, item in value.items()}


def _normalize_keyword(name: str, value: Json) -> Json:
    match value:
        case str() if name == "type":
            return value.upper()
        case dict() if name in ("properties", "defs", "$defs"):
            return {own: normalize_schema(item) for own, item in value.items()}
        case dict() if name in ("items", "additionalProperties", "not"):
            return normalize_schema(value)
        case list() if name in ("anyOf", "allOf", "oneOf", "prefixItems"):
            return [normalize_schema(item) for item in value]
        case list() if name == "type":
            return [_normalize_keyword(name, item) for item in value]
        case _:
            return value


_DATA_URL: Final = re.compile(r"data:([^,;]*)(?:;[^,;]+)*;base64,", re.IGNORECASE)
_URL_SAFE: Final[Mapping[int, int]] = str.maketrans("-_", "+/")


def digest_base64(text: str) -> str:
    """Replace base64 (either alphabet, with or without padding) or a data URL by a digest, keeping the media type."""
    url = _DATA_URL.match(text)
    data = _decode_base64(text[url.end() :] if url else text)
    if data is None:
        return text
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return f"data:{url[1].lower()};{digest}" if url else digest


def _decode_base64(text: str) -> bytes | None:
    plain = text.translate(_URL_SAFE).rstrip("=")
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4), strict_mode=True) if plain else None
    except (binascii.Error, UnicodeEncodeError, ValueError):
        return None
