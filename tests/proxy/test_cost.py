"""What `playhead cost` prints is readable on 100 columns, and what it and `playhead stats` print is what is known."""

from typing import Any

import click
import pytest

from proxy.cli.look.ask import _stats_row
from proxy.cli.look.cost import _print_steps, _print_tree, _summary_lines

AMOUNTS: dict[str, Any] = {
    "usage": {"input_tokens": 1_234_567, "output_tokens": 89_012, "cached_tokens": 1_000_000, "reasoning_tokens": 64},
    "cost_usd": None,
    "known_cost_usd": 12.5,
    "calls_without_price": 1,
    "new_tokens": 234_567,
    "repeated_tokens": 1_000_000,
}


def step(number: int, **more: Any) -> dict[str, Any]:
    made = {
        "step": number,
        "kind": "model",
        "model": "claude-sonnet-4-5-20250929",
        "actor": "plan\x1b[31mner",
        "branch": 2,
    }
    made |= {"status": 200, "name": "tools.example.com"}
    return {**AMOUNTS, **made, "cost_so_far_usd": 1012.5, **more}


def node(kind: str, name: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {**AMOUNTS, "kind": kind, "name": name, "first_step": 7, "calls": 1234, "children": list(children)}


def test_every_line_fits_and_is_safe_to_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    tool = step(3, kind="tool", model=None, known_cost_usd=None, calls_without_price=0)
    unknown = step(2, known_cost_usd=None)
    leaves = [node("model", f"model-{number} chat") for number in range(20)]
    branch = node("branch", "branch 2", *leaves)
    tree = node("run", "20261121-223011-4b1e", node("actor", "planner", node("branch", "branch 1", branch)))
    found = {
        "run": "r\x1b",
        "total": {**AMOUNTS, "calls": 3},
        "steps": [step(1), unknown, tool],
        "steps_left_out": 9,
        "tree": tree,
    }
    for line in _summary_lines(found):
        click.echo(line)
    _print_steps(found, 2)
    _print_steps(found, 3)
    _print_tree(tree)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "about 1,000,000 input tokens (81 %) had been sent before" in shown
    assert "the price of 1 model request is not known" in shown
    assert "only the first 3 steps" in shown
    assert "1 more step: --limit 3" in shown
    assert "$12.50+" in shown
    assert "unknown" in shown
    assert "plan\\x1b" in shown
    assert "└ 8 more" in shown


def test_more_tokens_may_be_cached_than_were_sent() -> None:
    """Anthropic counts cached tokens apart from the input: they are not a part of it."""
    usage = {"input_tokens": 500, "output_tokens": 100, "cached_tokens": 3000, "reasoning_tokens": None}
    found = {
        "run": "r",
        "total": {**AMOUNTS, "calls": 1, "usage": usage},
        "steps_left_out": 0,
        "tree": node("run", "r"),
    }
    assert "input 500 tokens, cached 3,000, output 100 (0 reasoning)" in list(_summary_lines(found))


@pytest.mark.parametrize(
    ("known", "without_price", "shown"),
    [(None, 2, "unknown"), (None, 0, "-"), (12.5, 0, "$12.50"), (12.5, 2, "$12.50+")],
)
def test_a_sum_says_whether_it_is_known(known: float | None, without_price: int, shown: str) -> None:
    sums = {
        "usage": AMOUNTS["usage"],
        "calls": 2,
        "errors": 0,
        "duration_ms": {"p50": 1.0, "p99": None},
        "known_cost_usd": known,
        "calls_without_price": without_price,
    }
    assert shown in _stats_row(["gpt-5"], sums, has_tries=False)


def test_a_status_says_how_many_tries_had_it() -> None:
    sums = {
        "usage": AMOUNTS["usage"],
        "calls": 0,
        "exchanges": 3,
        "errors": 0,
        "duration_ms": {"p50": 1.0, "p99": None},
        "known_cost_usd": None,
        "calls_without_price": 0,
    }
    assert _stats_row(["429"], sums, has_tries=True)[:4] == ("429", "0", "3", "0")
    assert _stats_row(["429"], sums, has_tries=False)[:3] == ("429", "0", "0")
