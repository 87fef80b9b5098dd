"""Read override files in TOML or JSON, with the line on which each override begins (docs/forks.md)."""

import json
import re
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from calls.overrides.overrides import BadOverride, Lines, Override, listed, named


def parse(text: str, *, is_json: bool) -> tuple[Override, ...]:
    """The overrides of a file. Raises BadOverride with the line."""
    return listed(*entries(text, is_json=is_json))


def entries(text: str, *, is_json: bool) -> tuple[Sequence[Any], Lines]:
    """The entries of a file as they stand there, and the line on which each begins. Raises BadOverride."""
    return _json(text) if is_json else _toml(text)


_HEAD: Final = re.compile(r"\s*\[\[\s*[\"']?override[\"']?\s*\]\]")
_AS_LIST: Final = 'write each one as a table [[override]] (in JSON: {"override": [{…}, …]})'


def _toml(text: str) -> tuple[Sequence[Any], Lines]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadOverride(f"it is not valid TOML: {error}") from None
    found = _entries(content)
    heads = [line for line, words in enumerate(text.splitlines(), 1) if _HEAD.match(words)]
    return found, heads if len(heads) == len(found) else ()


def _json(text: str) -> tuple[Sequence[Any], Lines]:
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadOverride(f"it is not valid JSON: {error}") from None
    found = _entries(content)
    return found, _lines(text, len(found))


def _lines(text: str, count: int) -> Lines:
    """The line on which each element of the one list begins."""
    begin = re.match(r'\s*\{\s*"override"\s*:\s*\[|\s*\[', text)
    found: list[int] = []
    at = begin.end() if begin else len(text)
    decoder = json.JSONDecoder()
    while begin and len(found) < count:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        found.append(text.count("\n", 0, at) + 1)
        _, at = decoder.raw_decode(text, at)
    return found


def _entries(content: Any) -> Sequence[Any]:
    if isinstance(content, list):
        return content
    if not isinstance(content, dict) or not isinstance(content.get("override"), list):
        raise BadOverride(f"it holds no overrides; {_AS_LIST}")
    if others := [name for name in content if name not in ("override", "$schema")]:
        raise BadOverride(f"it has {named(others)} beside the overrides; {_AS_LIST}")
    return list(content["override"])
