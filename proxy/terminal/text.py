"""Make text safe to print: what came over the wire is hostile, and a terminal must not obey it."""

import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Final

import click


def printable(text: str) -> str:
    """The text with every control character shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_json(text: str) -> str:
    """JSON of the same value in which every character that a terminal might act on is an escape of JSON."""
    return _SUSPECT.sub(_json_escape, text)


_SUSPECT: Final = re.compile(r"[^\n -~]")


def _json_escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def counted(number: int, thing: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def typed(words: str, rest: str = "") -> str:
    """A command of ours to type next, with the data directory and the settings that this one was given."""
    context = click.get_current_context(silent=True)
    given = context.params if context else {}
    # Not --database-url: there may be a password in it.
    same = [f"--{name} {shlex.quote(str(given[name]))}" for name in ("data", "config") if given.get(name)]
    return " ".join(("playhead", words, *same, *([rest] if rest else [])))


LAST: Final = 28
"""Columns that the last cell of a line is left, and NARROWEST those of another that has to give way."""

NARROWEST: Final = 16


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, advice: bool = False) -> None:
    """Columns as wide as they need to be, under a bold head; where they go to a terminal, no wider than it is.

    What has no room ends in an ellipsis. The first column is for copying and stays as it is; so does the last where it is
    `advice`, which goes below its line if it must.
    """
    clean = [tuple(printable(cell) for cell in row) for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    room = _room()
    below = advice and room is not None and _line(widths) > room
    shown = [row[:-1] for row in clean] if below else clean
    fitted = widths if advice else _fitted(widths, room)
    for number, row in enumerate(shown):
        cells = (shortened(cell, width).ljust(width) for cell, width in zip(row, fitted, strict=False))
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)
        if below and number and clean[number][-1]:
            click.echo(
                textwrap.fill(
                    clean[number][-1],
                    room or LAST,
                    initial_indent="    ",
                    subsequent_indent="      ",
                    break_on_hyphens=False,
                )
            )


def _line(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _room() -> int | None:
    """How wide a line may be; None where no terminal shows it."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return shutil.get_terminal_size().columns if known else None


def _fitted(widths: list[int], room: int | None) -> list[int]:
    """The widths of columns, the last and then the widest of the middle ones made narrower as far as they must and may be."""
    over = 0 if room is None else _line(widths) - room
    fitted = list(widths)
    for column, least in [(len(widths) - 1, LAST), *((n, NARROWEST) for n in _widest(widths)), (len(widths) - 1, 8)]:
        less = max(0, min(over, fitted[column] - least))
        fitted[column] -= less
        over -= less
    return fitted


def _widest(widths: list[int]) -> list[int]:
    return sorted(range(1, len(widths) - 1), key=lambda column: -widths[column])


def shortened(text: str, width: int) -> str:
    """The text on one line, cut to a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
