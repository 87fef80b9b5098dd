"""Set the number of Hypothesis examples of a test that needs fewer or more than others."""

from typing import Final

from hypothesis import settings

USUAL: Final = 100
"""Hypothesis's own number, which the profile of the checks halves."""


def few_examples(number: int) -> int:
    """Limit the examples of a test with many parameters; a profile that searches is not limited."""
    return _profile() if _profile() > USUAL else min(number, _profile())


def many_examples(number: int) -> int:
    """Set the examples in proportion to the profile's number; a profile that searches is not changed."""
    return _profile() if _profile() > USUAL else max(1, number * _profile() // USUAL)


def _profile() -> int:
    return settings.default.max_examples if settings.default else USUAL
