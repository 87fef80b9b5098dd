"""Lay out text for a terminal: columns, wide characters, and colour where standard output is a terminal.

The text comes from the wire, so every character that a terminal would act on is escaped.
"""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from proxy.terminal.text import printable

type StyledText = tuple[str, str | None]
"""A text and its style; None for plain text."""

MARKS: Final[Mapping[str, tuple[str, str]]] = {"gone": ("[-", "-]"), "come": ("{+", "+}")}
"""Marks around a change where there is no colour, as in `git diff --word-diff`."""

STYLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "gone": {"fg": "red"},
    "come": {"fg": "green"},
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "bold": {"bold": True},
    "dim": {"dim": True},
}

NARROWEST: Final = 76
"""Columns below which two texts are printed one below the other instead of side by side."""

MOST_LINES: Final = 8
"""Lines of one text that is printed beside or below another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The terminal or file that standard output goes to."""

    width: int
    colour: bool

    def print_line(self, *runs: StyledText) -> None:
        """Print one line, cut to the width."""
        click.echo(self._style(_cut_to_width(runs, self.width)), color=self.colour)

    def print_sentence(self, sentence: str, style: str | None = None) -> None:
        """Print a sentence of any length."""
        click.echo(self._style([(sentence, style)]), color=self.colour)

    def print_columns(self, left: Sequence[StyledText], right: Sequence[StyledText], indent: int) -> None:
        """Print two texts in two columns, or one below the other if the terminal is narrow."""
        if self.width < NARROWEST:
            for sign, runs in (("- ", left), ("+ ", right)):
                for line in _wrap_lines(self._mark_changes(runs), self.width - indent - 2, MOST_LINES):
                    click.echo(" " * indent + sign + self._style(line), color=self.colour)
            return
        half = (self.width - indent - 3) // 2
        columns = [list(_wrap_lines(self._mark_changes(runs), half, MOST_LINES)) for runs in (left, right)]
        for number in range(max(map(len, columns))):
            here, there = (column[number] if number < len(column) else [] for column in columns)
            room = " " * (half - sum(display_width(text) for text, _ in here))
            joined = " " * indent + self._style(here) + room + " │ " + self._style(there)
            click.echo(joined.rstrip(), color=self.colour)

    def _style(self, runs: Iterable[StyledText]) -> str:
        if not self.colour:
            return "".join(text for text, _ in runs)
        return "".join(click.style(text, **STYLES[style]) if style else text for text, style in runs)

    def _mark_changes(self, runs: Iterable[StyledText]) -> list[StyledText]:
        """Put marks around changes where there is no colour."""
        if self.colour:
            return list(runs)
        signs = (MARKS.get(style or "", ("", "")) for _, style in runs)
        return [(f"{before}{text}{after}", style) for (text, style), (before, after) in zip(runs, signs, strict=True)]


def stdout_sheet() -> Sheet:
    """Return the sheet for standard output: without colour in files, or if NO_COLOR is set (https://no-color.org)."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    width = shutil.get_terminal_size((100, 24)).columns
    return Sheet(width=max(20, width), colour=sys.stdout.isatty() and not plain)


def display_text(value: Any) -> str:
    """Return a JSON value as text that is safe to print, with visible line breaks."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return printable(text.replace("\n", "⏎ "))


def display_width(text: str) -> int:
    """Return the number of columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut_to_width(runs: Iterable[StyledText], width: int) -> Iterator[StyledText]:
    room = width
    for text, style in runs:
        length = _fitting_length(text, room)
        yield text[:length], style
        if length < len(text):
            return
        room -= display_width(text)


def _fitting_length(text: str, room: int) -> int:
    """Return how many characters of a text fit into `room` columns."""
    if text.isascii():
        return min(len(text), max(0, room))
    for number, char in enumerate(text):
        room -= _char_width(char)
        if room < 0:
            return number
    return len(text)


def _wrap_lines(runs: Iterable[StyledText], width: int, most: int) -> Iterator[list[StyledText]]:
    """Wrap text to lines of this width. After `most` lines the rest is an ellipsis."""
    width = max(2, width)
    line: list[StyledText] = []
    room, lines = width, 1
    for text, style in runs:
        while text:
            length = _fitting_length(text, room)
            if length < len(text):
                # Break after a space if there is one.
                length = text.rfind(" ", 0, length) + 1 or length
            line.append((text[:length], style))
            room -= display_width(text[:length])
            text = text[length:]
            if text:
                if lines == most:
                    yield [*_cut_to_width(line, width - 1), ("…", None)]
                    return
                yield line
                line, room, lines = [], width, lines + 1
    if line or lines == 1:
        yield line
