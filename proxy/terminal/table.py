"""Lay out text for a terminal: its width, wide characters, colour only where it is seen.

Everything that is laid out here came over the wire. It is shown, never obeyed: no character that a terminal would act
on reaches it.
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

type Run = tuple[str, str | None]
"""Some text and its style, None for plain."""

MARKS: Final[Mapping[str, tuple[str, str]]] = {"gone": ("[-", "-]"), "come": ("{+", "+}")}
"""What stands around a change where there is no colour, as in `git diff --word-diff`."""

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
"""Below this many columns two texts stand under each other, not side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What is written on."""

    width: int
    colour: bool

    def put(self, *runs: Run) -> None:
        """Print one line; plain text is cut to the width."""
        click.echo(self._styled(_fitted(runs, self.width)), color=self.colour)

    def say(self, sentence: str, style: str | None = None) -> None:
        """Print a sentence, however long it is."""
        click.echo(self._styled([(sentence, style)]), color=self.colour)

    def beside(self, left: Sequence[Run], right: Sequence[Run], indent: int = 0, most: int = 8) -> None:
        """Print two texts side by side, or under each other where there is no room, each wrapped to its half."""
        if self.width < NARROWEST:
            for sign, runs in (("- ", left), ("+ ", right)):
                for line in _wrapped(self._marked(runs), self.width - indent - 2, most):
                    click.echo(" " * indent + sign + self._styled(line), color=self.colour)
            return
        half = (self.width - indent - 3) // 2
        columns = [list(_wrapped(self._marked(runs), half, most)) for runs in (left, right)]
        for number in range(max(map(len, columns))):
            here, there = (column[number] if number < len(column) else [] for column in columns)
            room = " " * (half - sum(cells(text) for text, _ in here))
            joined = " " * indent + self._styled(here) + room + " │ " + self._styled(there)
            click.echo(joined.rstrip(), color=self.colour)

    def _styled(self, runs: Iterable[Run]) -> str:
        if not self.colour:
            return "".join(text for text, _ in runs)
        return "".join(click.style(text, **STYLES[style]) if style else text for text, style in runs)

    def _marked(self, runs: Iterable[Run]) -> list[Run]:
        """Where colour cannot show what changed, signs do."""
        if self.colour:
            return list(runs)
        signs = (MARKS.get(style or "", ("", "")) for _, style in runs)
        return [(f"{before}{text}{after}", style) for (text, style), (before, after) in zip(runs, signs, strict=True)]


def sheet() -> Sheet:
    """Standard output as it is: https://no-color.org, and no escapes into files."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    width = shutil.get_terminal_size((100, 24)).columns
    return Sheet(width=max(20, width), colour=sys.stdout.isatty() and not plain)


def shown(value: Any) -> str:
    """A JSON value as a text without anything that a terminal acts on; new lines can be seen."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return printable(text.replace("\n", "⏎ "))


def cells(text: str) -> int:
    """How many columns a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _fitted(runs: Iterable[Run], width: int) -> Iterator[Run]:
    left = width
    for text, style in runs:
        taken = _taken(text, left)
        yield text[:taken], style
        if taken < len(text):
            return
        left -= cells(text)


def _taken(text: str, room: int) -> int:
    """How many characters of a text go into so many columns."""
    if text.isascii():
        return min(len(text), max(0, room))
    for number, char in enumerate(text):
        room -= _cells(char)
        if room < 0:
            return number
    return len(text)


def _wrapped(runs: Iterable[Run], width: int, most: int) -> Iterator[list[Run]]:
    """Lines of this width, cut where it must be; of more than `most` the rest is a dot-dot-dot."""
    width = max(2, width)
    line: list[Run] = []
    room, lines = width, 1
    for text, style in runs:
        while text:
            taken = _taken(text, room)
            if taken < len(text):
                # After a blank, where there is one.
                taken = text.rfind(" ", 0, taken) + 1 or taken
            line.append((text[:taken], style))
            room -= cells(text[:taken])
            text = text[taken:]
            if text:
                if lines == most:
                    yield [*_fitted(line, width - 1), ("…", None)]
                    return
                yield line
                line, room, lines = [], width, lines + 1
    if line or lines == 1:
        yield line
