"""Tell bare participles among names: `told` and `settled` say nothing of what a function does or returns."""

import re
from typing import Final

_IRREGULAR: Final = frozenset(
    """
    begun bent bound bought broken brought built caught chosen come dealt done drawn driven due eaten fallen fed felt flown
    forgotten found frozen given gone grown heard held hidden hung kept known lacking laid lain led left lent lost made meant met
    missing paid said seen sent shown sold sought spent spoken spun stolen struck stuck sung sunk swept sworn taken taught thought
    thrown told torn understood undone woken won worn wound written
    """.split()  # noqa: SIM905 - a line a word would be long
)
"""Forms that are no verb's base form: `read`, `put`, `cut`, `split` and `run` are names for what reads, puts, cuts, splits and runs."""

_NOT_PARTICIPLES: Final = frozenset(
    ("embed", "exceed", "feed", "need", "proceed", "red", "seed", "shed", "speed", "succeed")
)


def is_bare_participle(name: str) -> bool:
    """Whether a name is one word, and that a participle."""
    if re.search("[a-z][A-Z]", name):
        return False
    word = name.strip("_").lower()
    return word in _IRREGULAR or (
        word.endswith("ed") and word.isalpha() and word not in _NOT_PARTICIPLES and len(word) > 3
    )
