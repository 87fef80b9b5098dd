"""Make text safe to print: text from the wire may hold control characters. Print tables."""

import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

import click


def printable(text: str) -> str:
    """Return the text with every control character as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_json(text: str) -> str:
    """Return equal JSON in which every character that a terminal might act on is a JSON escape."""
    return _SUSPECT.sub(_json_escape, text)


_SUSPECT: Final = re.compile(r"[^\n -~]")


def _json_escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def count_text(number: int, thing: str) -> str:
    """Return a number with its noun: `1 call`, `2 calls`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def money(usd: float) -> str:
    """Return an amount in US dollars: to the cent from a dollar on, otherwise to the millionth."""
    if usd >= 1:
        return f"${usd:,.2f}"
    return "$0" if usd == 0 else "<$0.000001" if usd < 0.000001 else f"${usd:.6f}"


def next_command(words: str, rest: str = "") -> str:
    """Return a playhead command to type next, with the `--data`, `--config`, `--project` and `--database-url` of this one."""
    context = click.get_current_context(silent=True)
    parameters = context.params if context else {}
    same = [
        f"--{name} {shlex.quote(str(parameters[name]))}"
        for name in ("data", "config", "project")
        if parameters.get(name)
    ]
    if url := parameters.get("database_url"):
        same.append(f"--database-url {'URL' if _has_password(url) else shlex.quote(url)}")
    return " ".join(("playhead", words, *same, *([rest] if rest else [])))


def _has_password(url: str) -> bool:
    """Whether a URL of a database may hold a password, which no terminal or log should show."""
    return "password" in url.lower() or re.search("//[^/@]*:[^/]*@", url) is not None


LAST: Final = 28
"""The least width of the last column of a table."""

NARROWEST: Final = 16
"""The least width of a middle column."""


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, advice: bool = False) -> None:
    """Print a table under a bold head, no wider than the terminal.

    Cells that do not fit end in an ellipsis. The first column is never cut, so that it can be copied. With `advice` the last
    column is never cut either; it is printed below its row if necessary.
    """
    clean = [tuple(printable(cell) for cell in row) for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    room = _terminal_width()
    below = advice and room is not None and _line_width(widths) > room
    rows_above = [row[:-1] for row in clean] if below else clean
    fitted = widths if advice else _fit_widths(widths, room)
    for number, row in enumerate(rows_above):
        _print_row(row, fitted, bold=number == 0)
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


def print_pages(head: tuple[str, ...], pages: Iterable[Sequence[tuple[str, ...]]]) -> None:
    """Print a table whose rows come page by page. A column is as wide as the pages so far need, so it may become wider."""
    widths = [len(cell) for cell in head]
    for number, rows in enumerate(pages):
        clean = [tuple(printable(cell) for cell in row) for row in rows]
        widths = [max([width, *(len(row[column]) for row in clean)]) for column, width in enumerate(widths)]
        fitted = _fit_widths(widths, _terminal_width())
        if number == 0:
            _print_row(head, fitted, bold=True)
        for row in clean:
            _print_row(row, fitted)


def _print_row(row: Sequence[str], widths: Sequence[int], *, bold: bool = False) -> None:
    cells = (shorten(cell, width).ljust(width) for cell, width in zip(row, widths, strict=False))
    line = "  ".join(cells).rstrip()
    click.echo(click.style(line, bold=True) if bold else line)


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _terminal_width() -> int | None:
    """Return the width of the terminal, or None if output goes elsewhere."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return shutil.get_terminal_size().columns if known else None


def _fit_widths(widths: list[int], room: int | None) -> list[int]:
    """Return the widths of columns, narrowing the last and then the widest middle ones as far as necessary and allowed."""
    over = 0 if room is None else _line_width(widths) - room
    fitted = list(widths)
    for column, least in [
        (len(widths) - 1, LAST),
        *((n, NARROWEST) for n in _widest_columns(widths)),
        (len(widths) - 1, 8),
    ]:
        less = max(0, min(over, fitted[column] - least))
        fitted[column] -= less
        over -= less
    return fitted


def _widest_columns(widths: list[int]) -> list[int]:
    return sorted(range(1, len(widths) - 1), key=lambda column: -widths[column])


def shorten(text: str, width: int) -> str:
    """Return the text on one line, cut to a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
