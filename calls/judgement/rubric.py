"""Read the criteria of a rubric: `[[criterion]]` tables in TOML (docs/judge.md)."""

import re
import tomllib
from typing import Any, Final

import msgspec

MOST_CRITERIA: Final = 50

_CRITERION_HEAD: Final = re.compile(r"\s*\[\[\s*[\"']?criterion[\"']?\s*\]\]")
_NAME: Final = re.compile(r"[\w .:-]{1,80}")


class BadRubric(ValueError):
    """A rubric cannot be read; the message has the line."""


class Criterion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question about a run."""

    name: str
    question: str
    """What to decide. `pass` means yes."""


def parse_rubric(text: str) -> tuple[Criterion, ...]:
    """Parse the text of a rubric. Raises BadRubric."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRubric(f"invalid TOML: {error}") from None
    entries = content.get("criterion")
    if others := [name for name in content if name != "criterion"]:
        raise BadRubric(f"unknown {others[0]!r}: a rubric has only [[criterion]] tables")
    if not isinstance(entries, list) or not entries:
        raise BadRubric("it has no criteria: write each as a table [[criterion]] with `name` and `question`")
    if len(entries) > MOST_CRITERIA:
        raise BadRubric(f"it has {len(entries)} criteria, at most {MOST_CRITERIA} are allowed: divide it")
    heads = [number for number, line in enumerate(text.splitlines(), 1) if _CRITERION_HEAD.match(line)]
    lines = heads if len(heads) == len(entries) else [0] * len(entries)
    criteria = tuple(_parse_criterion(entry, line) for entry, line in zip(entries, lines, strict=True))
    names = [criterion.name for criterion in criteria]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise BadRubric(f"two criteria have the name {double!r}")
    return criteria


def _parse_criterion(entry: Any, line: int) -> Criterion:
    where = f"line {line}" if line else "a criterion"
    try:
        found = msgspec.convert(entry, Criterion)
    except msgspec.ValidationError as error:
        raise BadRubric(f"{where}: {error}; a criterion has `name` and `question`") from None
    if not _NAME.fullmatch(found.name) or not found.question.strip():
        raise BadRubric(f"{where}: a name has 1 to 80 letters, digits, spaces and . : _ -, and a question is not empty")
    return found
