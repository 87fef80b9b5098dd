"""What a replay has as it was recorded, variables, proxy variables and names that did not resolve, and how a run remembers them: by labels."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Final

PINNED_VARIABLES: Final = (
    *("TZ", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_COLLATE", "LC_MONETARY"),
    *("PYTHONHASHSEED", "PERL_HASH_SEED", "PERL_PERTURB_KEYS"),
)
"""Variables that a replay has as they were recorded (`playhead_effects.start` records them as well)."""

ENVIRONMENT_LABEL: Final = "playhead.env"
"""The label of a run with the variables that its command had: `LANG=C.UTF-8 PYTHONHASHSEED=0`."""

UNRESOLVED_LABEL: Final = "playhead.unresolved"
"""The label of a run with the host names that did not resolve for its command, which do not resolve in a replay either."""

PROXY_LABEL: Final = "playhead.proxy_variables"
"""The label of a run whose command had proxy variables although it was captive, as a fork of one that was not."""

HAS_PROXY: Final = "yes"

MOST_TEXT: Final = 500


def format_environment(variables: Mapping[str, str]) -> str:
    """Return variables as the text of the label; the longest are left out of one that would be too long."""
    words = {name: shlex.quote(f"{name}={value}") for name, value in sorted(variables.items()) if value.isprintable()}
    while sum(map(len, words.values())) + len(words) > MOST_TEXT:
        del words[max(words, key=lambda name: len(words[name]))]
    return " ".join(words.values())


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables in the text of a label. Others than those that may be pinned are left out."""
    try:
        words = shlex.split(text)
    except ValueError:
        return {}
    parts = [word.partition("=") for word in words]
    return {name: value for name, _, value in parts if name in PINNED_VARIABLES}


def format_names(names: Iterable[str]) -> str:
    """Return names as the text of a label, as many as it takes."""
    text = ""
    for name in sorted(names):
        if len(text) + 1 + len(name) <= MOST_TEXT and name.isprintable() and " " not in name:
            text += f" {name}" if text else name
    return text
