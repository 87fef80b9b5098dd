"""Read override files in TOML or JSON, with the line on which each override begins (docs/forks.md)."""

import json
import re
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from calls.overrides.overrides import BadOverride, Lines, quote_names


def read_entries(text: str, *, is_json: bool) -> tuple[Sequence[Any], Lines]:
    """Return the entries of a file, unvalidated, and the line on which each begins. Raises BadOverride."""
    return _read_json(text) if is_json else _read_toml(text)


_TABLE_HEAD: Final = re.compile(r"\s*\[\[\s*[\"']?override[\"']?\s*\]\]")
_AS_LIST: Final = 'write each one as a table [[override]] (in JSON: {"override": [{…}, …]})'


def _read_toml(text: str) -> tuple[Sequence[Any], Lines]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadOverride(f"invalid TOML: {error}") from None
    found = _checked_entries(content)
    heads = [line for line, words in enumerate(text.splitlines(), 1) if _TABLE_HEAD.match(words)]
    return found, heads if len(heads) == len(found) else ()


def _read_json(text: str) -> tuple[Sequence[Any], Lines]:
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadOverride(f"invalid JSON: {error}") from None
    found = _checked_entries(content)
    return found, _entry_lines(text, len(found))


def _entry_lines(text: str, count: int) -> Lines:
    """Return the line on which each element of the list begins."""
    begin = re.match(r'\s*\{\s*"override"\s*:\s*\[|\s*\[', text)
    found: list[int] = []
    at = begin.end() if begin else len(text)
    decoder = json.JSONDecoder()
    while begin and len(found) < count:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        found.append(text.count("\n", 0, at) + 1)
        _, at = decoder.raw_decode(text, at)
    return found


def _checked_entries(content: Any) -> Sequence[Any]:
    if isinstance(content, list):
        return content
    if not isinstance(content, dict) or not isinstance(content.get("override"), list):
        raise BadOverride(f"it contains no overrides; {_AS_LIST}")
    if others := [name for name in content if name not in ("override", "$schema")]:
        raise BadOverride(f"it has {quote_names(others)} besides the overrides; {_AS_LIST}")
    return list(content["override"])
