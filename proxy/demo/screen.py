"""Print the demo: few lines, aligned, coloured only on a terminal."""

import os
import shutil
import textwrap
from collections.abc import Mapping
from typing import TextIO

INDENT = " " * 10
MAX_WIDTH = 120


class Screen:
    """A terminal, or a file that gets the same text without colours."""

    def __init__(self, out: TextIO, environment: Mapping[str, str] = os.environ) -> None:
        self.out = out
        # https://no-color.org: set and not empty, whatever its value.
        self.is_coloured = out.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        self.width = min(shutil.get_terminal_size((100, 24)).columns, MAX_WIDTH)
        self.output_width = self.width - len(INDENT)
        """The width of the output of programs, which is indented."""
        self._column = 0

    def print_line(self, text: str = "") -> None:
        self._write(text + "\n")

    def print_step(self, name: str, text: str) -> None:
        """Print the heading of a step."""
        self.print_line()
        filled = self._fill(text, INDENT, INDENT)
        self.print_line(self._style(name.ljust(len(INDENT)), "1") + filled[len(INDENT) :])

    def print_fact(self, text: str) -> None:
        """Print one line below a step."""
        self.print_line(INDENT + text)

    def print_success(self, text: str) -> None:
        self.print_fact(self._style(text, "32"))

    def print_failure(self, text: str) -> None:
        self.print_fact(self._style(text, "31"))

    def print_command(self, command: str) -> None:
        """Print a command line with a prompt."""
        self.print_fact(self._style("$ ", "2") + self._style(command, "36"))

    def print_output(self, text: str) -> None:
        """Print a program's output as it arrives, indented, with its lines cut to the terminal's width."""
        self._write("".join(map(self._place_char, text)))

    def print_quote(self, text: str) -> None:
        """Print a program's output, with long lines wrapped."""
        for line in text.splitlines():
            margin = INDENT + " " * (len(line) - len(line.lstrip()))
            self.print_line(self._fill(line.strip(), margin, margin + "  "))

    def _fill(self, text: str, first: str, others: str) -> str:
        # Options and paths with hyphens stay whole, so that they can be copied.
        return textwrap.fill(text, self.width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)

    def _place_char(self, char: str) -> str:
        if char == "\n":
            self._column = 0
            return char
        self._column += 1
        margin = INDENT if self._column == 1 else ""
        if self._column == self.output_width:
            return "…"
        return margin + char if self._column < self.output_width else ""

    def _style(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.is_coloured else text

    def _write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()
