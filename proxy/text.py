"""Text for people: what came over the wire is hostile, and a terminal must not obey it."""

import shlex
from collections.abc import Sequence

import click


def printable(text: str) -> str:
    """The text with every control character shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


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


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as they need to be, under a bold head."""
    clean = [tuple(printable(cell) for cell in row) for row in [head, *rows]]
    widths = [max(len(row[column]) for row in clean) for column in range(len(head))]
    for number, row in enumerate(clean):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def shortened(text: str, width: int) -> str:
    """The text on one line, cut to a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
