"""How many examples Hypothesis makes where a test needs fewer or more of them than others."""

from typing import Final

from hypothesis import settings

USUAL: Final = 100
"""Hypothesis's own number, which the profile of the checks halves."""


def few_examples(number: int) -> int:
    """At most so many, for a test of many parameters; as many as the profile where that searches."""
    return _profile() if _profile() > USUAL else min(number, _profile())


def many_examples(number: int) -> int:
    """So many where others have the usual number, and in proportion where they have fewer; as many as the profile where that searches."""
    return _profile() if _profile() > USUAL else max(1, number * _profile() // USUAL)


def _profile() -> int:
    return settings.default.max_examples if settings.default else USUAL
