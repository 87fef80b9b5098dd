"""The settings `[[retention]]`, `retention_failed` and `retention_budget`: how long recordings are kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from store.retention.rules import BadRule, RetentionPolicy, parse_duration, parse_rule, parse_size, shipped_rules


def check_rules(tables: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError that names the first rule with a mistake."""
    for number, table in enumerate(tables, 1):
        try:
            parse_rule(table, number)
        except BadRule as error:
            raise ValueError(f"rule {number}: {error}") from error


def check_duration(text: str) -> str:
    """Return the text if it is a duration. Raises ValueError."""
    parse_duration(text)
    return text


def check_size(text: str) -> str:
    """Return the text if it is a size. Raises ValueError."""
    parse_size(text)
    return text


def retention_policy(tables: Sequence[Mapping[str, Any]], failed: str, budget: str | None) -> RetentionPolicy:
    """Return the policy of settings that were checked."""
    rules = (parse_rule(table, number) for number, table in enumerate(tables, 1))
    return RetentionPolicy(
        rules=(*shipped_rules(failed), *rules), budget=None if budget is None else parse_size(budget)
    )
