"""The one exception that ends a command: a sentence for the person who typed it."""

from typing import Final

OWN_FAILURE: Final = 125
"""The exit code of our own failures; those of a wrapped command are its own."""


class Failure(Exception):
    """What happened, why, and what to do, in one sentence. The command line prints it and exits with 125."""
