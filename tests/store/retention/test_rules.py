"""The first rule that fits decides, nothing protected ever goes, and a mistake in a rule is explained."""

from typing import Any

import pytest

from store.retention.rules import (
    BadRule,
    RetentionRule,
    RunFacts,
    duration_text,
    judge_run,
    parse_duration,
    parse_rule,
    parse_size,
    shipped_rules,
)

DAY = 86_400
NOW = 100 * DAY * 10**9


def facts(**more: Any) -> RunFacts:
    return RunFacts(**{"project": "web", "run": "r", "newest_at": NOW - 8 * DAY * 10**9, **more})


def rules(*tables: dict[str, Any]) -> tuple[RetentionRule, ...]:
    return (*shipped_rules(), *(parse_rule(table, n) for n, table in enumerate(tables, 1)))


WEEK = {"keep": "7d"}


@pytest.mark.parametrize(
    ("match", "of_run"),
    [
        ({"project": "w*"}, {}),
        ({"label": {"env": "ci", "team": "*"}}, {"labels": {"env": "ci", "team": "a"}}),
        ({"model": ["gpt-5*", "claude-*"]}, {"models": frozenset({"claude-5"})}),
        ({"status": [429, "5xx"]}, {"statuses": frozenset({200, 503})}),
        ({"min_cost": 0.5}, {"cost_usd": 0.5}),
        ({"has_error": True}, {"has_error": True}),
        ({"has_gap": True}, {"has_gap": True}),
        ({"verdict": "diverged"}, {"verdicts": frozenset({"right", "diverged"})}),
        ({"max_cost": 0}, {}),
        ({"pinned": False}, {}),
    ],
)
def test_a_rule_fits_runs_that_have_all_that_it_names(match: dict[str, Any], of_run: dict[str, Any]) -> None:
    (rule,) = rules({"match": match, **WEEK})[1:]
    assert judge_run(facts(**of_run), [rule], NOW).part == "run"
    other = {"project": "other", "labels": {"env": "prod"}, "cost_usd": 0.1}
    if "max_cost" not in match and "pinned" not in match:
        assert judge_run(facts(**other), [rule], NOW).part is None


def test_the_first_rule_that_fits_decides() -> None:
    both = rules({"match": {"label": {"env": "prod"}}, "keep": "forever"}, WEEK)
    assert judge_run(facts(labels={"env": "prod"}), both, NOW).part is None
    assert judge_run(facts(), both, NOW).part == "run"
    assert judge_run(facts(newest_at=NOW - 6 * DAY * 10**9), both, NOW).part is None


def test_bodies_go_before_the_run_and_once() -> None:
    found = [RetentionRule(name="all", keep=30 * DAY, bodies=2 * DAY)]
    assert judge_run(facts(), found, NOW).part == "bodies"
    assert judge_run(facts(bodies_erased_at=facts().newest_at), found, NOW).part is None
    assert judge_run(facts(bodies_erased_at=facts().newest_at - 1), found, NOW).part == "bodies"


@pytest.mark.parametrize(
    "protection",
    [
        {"is_pinned": True},
        {"is_live": True},
        {"is_forked_from": True},
        {"is_summed": False},
        {"labels": {"flagged": "yes"}},
    ],
)
def test_a_protected_run_stays_whatever_the_rules_say(protection: dict[str, Any]) -> None:
    verdict = judge_run(facts(**protection), rules({"keep": "30m"}), NOW)
    assert verdict.part is None
    assert not verdict.may_go_for_budget


def test_a_run_that_ended_badly_is_kept_unless_the_setting_says_how_long() -> None:
    failed = facts(ended_badly=True)
    verdict = judge_run(failed, rules(WEEK), NOW)
    assert (verdict.part, verdict.may_go_for_budget) == (None, False)
    assert judge_run(failed, shipped_rules("7d"), NOW).part == "run"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, 'needs keep, such as keep = "7d"'),
        ({"keep": "7x"}, "invalid duration '7x': use 30m, 12h, 7d, 2w, 1y or forever"),
        ({"keep": 7}, "invalid duration 7"),
        ({"keep": "0d"}, "invalid duration '0d'"),
        ({"keep": "7d", "mach": {}}, "no member 'mach': it may have name, match, keep, keep_bodies"),
        ({"keep": "7d", "match": {"modell": "x"}}, "no member 'modell': it may have project, label, model"),
        ({"keep": "7d", "match": {"has_error": "yes"}}, "neither true nor false"),
        ({"keep": "7d", "match": {"status": "50"}}, "write 429, or 5xx"),
        ({"keep": "7d", "match": {"verdict": "wrong"}}, "use right, diverged, unknown"),
        ({"keep": "7d", "match": {"label": "ci"}}, "label is a table"),
        ({"keep": "7d", "match": {"min_cost": "1"}}, "not an amount in US dollars"),
        ({"keep": "7d", "keep_bodies": "7d"}, "is no shorter than keep"),
    ],
)
def test_a_mistake_in_a_rule_says_what_to_write(table: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRule) as raised:
        parse_rule(table, 1)
    assert words in str(raised.value)


def test_durations_and_sizes() -> None:
    assert [parse_duration(text) for text in ("30m", "2w", "1y", "forever")] == [1800, 14 * DAY, 365 * DAY, None]
    assert [duration_text(seconds) for seconds in (1800, 7 * DAY, 9 * DAY, 3600)] == ["30m", "1w", "9d", "1h"]
    assert [parse_size(text) for text in ("500MB", "1.5GB", "2GiB", "7")] == [500_000_000, 1_500_000_000, 2 << 30, 7]
    with pytest.raises(BadRule, match="invalid size '5 parsecs'"):
        parse_size("5 parsecs")
