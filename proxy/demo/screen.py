"""Print the demo: few lines, aligned, coloured only on a terminal."""

import os
import shutil
import textwrap
from collections.abc import Mapping
from typing import TextIO

INDENT = " " * 10
WIDEST = 120


class Screen:
    """A terminal, or a file that gets the same words without the colours."""

    def __init__(self, out: TextIO, environment: Mapping[str, str] = os.environ) -> None:
        self.out = out
        # https://no-color.org: set and not empty, whatever it says.
        self.coloured = out.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        self.width = min(shutil.get_terminal_size((100, 24)).columns, WIDEST)
        self.room = self.width - len(INDENT)
        """What is left of a line for what others say."""
        self._column = 0

    def line(self, text: str = "") -> None:
        self._write(text + "\n")

    def step(self, name: str, text: str) -> None:
        """Begin a step of the story."""
        self.line()
        told = self._filled(text, INDENT, INDENT)
        self.line(self._styled(name.ljust(len(INDENT)), "1") + told[len(INDENT) :])

    def fact(self, text: str) -> None:
        """One line below a step."""
        self.line(INDENT + text)

    def good(self, text: str) -> None:
        self.fact(self._styled(text, "32"))

    def bad(self, text: str) -> None:
        self.fact(self._styled(text, "31"))

    def command(self, typed: str) -> None:
        """What was typed, or is to be."""
        self.fact(self._styled("$ ", "2") + self._styled(typed, "36"))

    def hear(self, text: str) -> None:
        """A program's own output as it comes, set in; its lines are cut to the terminal's width."""
        self._write("".join(map(self._placed, text)))

    def quote(self, text: str) -> None:
        """What a program said, whole: long lines go on below themselves."""
        for line in text.splitlines():
            margin = INDENT + " " * (len(line) - len(line.lstrip()))
            self.line(self._filled(line.strip(), margin, margin + "  "))

    def _filled(self, text: str, first: str, others: str) -> str:
        # A hyphen is part of an option or of a path, and those are copied.
        return textwrap.fill(text, self.width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)

    def _placed(self, char: str) -> str:
        if char == "\n":
            self._column = 0
            return char
        self._column += 1
        margin = INDENT if self._column == 1 else ""
        if self._column == self.room:
            return "…"
        return margin + char if self._column < self.room else ""

    def _styled(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.coloured else text

    def _write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()
