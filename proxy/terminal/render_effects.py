"""Show effects: what a program got from elsewhere than the network."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from proxy.terminal.text import count_text, printable, shorten

AROUND: Final = 7
"""Columns that each table of calls has."""

type Shape = Mapping[str, Any]
type Row = tuple[str, ...]

MOST_KINDS: Final = 6
"""Kinds that the line of a group names."""


def show_effect(effect: Shape) -> None:
    """Print an effect as a line: when, what, what the program got, and which line of it asked."""
    times = f" ×{effect['count']:,}" if effect["count"] > 1 else ""
    args = " ".join(f"{name}={_text(value)}" for name, value in (effect["args"] or {}).items())
    got = "(needs bodies:read)" if effect["text"] is None else shorten(effect["text"], 80)
    where = f"{effect['at']} in {effect['task']}" if effect["task"] != "main" else effect["at"]
    process = "" if effect["process"] == "0" else f" of process {effect['process']}"
    what = f"{effect['kind']}{times}{' ' + args if args else ''}"
    raised = "raised " if effect["error"] else ""
    click.echo(printable(f"  {effect['happened_at'][11:23]}  {what}  = {raised}{got}  ({where}{process})"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def rows_with_effects(
    head: Row, rows: Sequence[Row], calls: Sequence[Shape], groups: Sequence[Shape]
) -> tuple[Row, list[Row]]:
    """Return the table of a run's calls with a row for the effects before each call, and after the last one."""
    merged: list[Row] = []
    remaining = list(groups)
    for row, call in zip(rows, calls, strict=True):
        while remaining and remaining[0]["before_step"] is not None and remaining[0]["before_step"] <= call["step"]:
            merged.append(_group_row(remaining.pop(0), len(head)))
        merged.append(row)
    return head, [*merged, *(_group_row(group, len(head)) for group in remaining)]


def _group_row(group: Shape, columns: int) -> Row:
    few = [_kind_text(kind) for kind in group["kinds"][:MOST_KINDS]]
    more = [f"and {len(group['kinds']) - MOST_KINDS} more kinds"] if len(group["kinds"]) > MOST_KINDS else []
    # STEP, columns that only some runs have, CALL, four that say nothing about effects, ANSWER.
    empty = [""] * (columns - AROUND)
    return "·", *empty, count_text(group["count"], "effect"), "", "", "", "", ", ".join((*few, *more))


def _kind_text(kind: Shape) -> str:
    """A kind with its names, or with the first result."""
    times = f" ×{kind['count']:,}" if kind["count"] > 1 else ""
    if kind["names"]:
        return f"{kind['kind']}{times} {' '.join(kind['names'])}"
    return f"{kind['kind']}{times}"
