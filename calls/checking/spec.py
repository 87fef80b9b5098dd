"""Read the rules of a spec: `[[rule]]` tables in TOML, each with a `kind` (docs/check.md)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from calls.checking.content_rules import AnswerRule, GroundedRule, NoSecretRule, RetrievedRule, SameRule
from calls.checking.rules import (
    ArgumentRule,
    BudgetRule,
    ForbidRule,
    OnlyRule,
    RequireRule,
    Rule,
    TargetRule,
    ToolsRule,
)

KINDS: Final[Mapping[str, type[Rule]]] = {
    str(rule.__struct_config__.tag): rule
    for rule in (
        ToolsRule,
        RequireRule,
        ForbidRule,
        OnlyRule,
        ArgumentRule,
        TargetRule,
        SameRule,
        BudgetRule,
        AnswerRule,
        NoSecretRule,
        RetrievedRule,
        GroundedRule,
    )
}
"""Every kind of rule by its name."""

_RULE_HEAD: Final = re.compile(r"\s*\[\[\s*[\"']?rule[\"']?\s*\]\]")


class BadSpec(ValueError):
    """A spec cannot be read; the message has the line."""


@dataclass(frozen=True, slots=True)
class SpecRule:
    """A rule and where it is."""

    rule: Rule
    line: int | None
    """The line on which it begins; None where that is not known."""

    @property
    def title(self) -> str:
        """The rule's name, else its kind."""
        return self.rule.name or str(self.rule.__struct_config__.tag)


def parse_spec(text: str) -> tuple[SpecRule, ...]:
    """Parse the text of a spec. Raises BadSpec."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSpec(f"invalid TOML: {error}") from None
    entries = content.get("rule")
    if others := [name for name in content if name != "rule"]:
        raise BadSpec(f"unknown {others[0]!r}: a spec has only [[rule]] tables")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise BadSpec("it has no rules: write each as a table [[rule]], or make a spec with playhead check --init RUN")
    heads = [number for number, line in enumerate(text.splitlines(), 1) if _RULE_HEAD.match(line)]
    lines = heads if len(heads) == len(entries) else [None] * len(entries)
    return tuple(SpecRule(_parse_rule(entry, line), line) for entry, line in zip(entries, lines, strict=True))


def _parse_rule(entry: dict[str, Any], line: int | None) -> Rule:
    where = "a rule" if line is None else f"line {line}"
    kind = str(entry.get("kind", ""))
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        problem = f"unknown kind of rule {kind[:100]!r}" if kind else "a rule without `kind`"
        raise BadSpec(f"{where}: {problem}; {hint}There are {', '.join(KINDS)}")
    try:
        rule: Rule = msgspec.convert(entry, KINDS[kind])
    except msgspec.ValidationError as error:
        raise BadSpec(f"{where}: {kind}: {_readable_error(str(error), KINDS[kind])}") from None
    if why := rule.mistake():
        raise BadSpec(f"{where}: {kind}: {why}")
    return rule


def _readable_error(message: str, kind: type[Rule]) -> str:
    """Return the error of msgspec with the members that there are."""
    unknown = re.match(r"Object contains unknown field `(.*?)`(.*)", message)
    if unknown is None:
        return (
            message.replace("Object missing required field", "it needs")
            .replace(" - at `$.", " at `")
            .replace("`$`", "the rule")
        )
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    near = get_close_matches(unknown[1], known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown member {unknown[1]!r}; {hint}It has {', '.join(known)}"
