"""Fill a recording's name and labels into a command, since each run of a set was made with other arguments."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.errors import Failure

_PLACEHOLDER: Final = re.compile(r"\{(run|label\.[^{}]+)\}")


def has_placeholders(command: Sequence[str]) -> bool:
    """Whether a command names the recording, or its labels."""
    return any(_PLACEHOLDER.search(word) for word in command)


def fill_command(command: Sequence[str], name: str, run: Mapping[str, Any]) -> tuple[str, ...]:
    """Replace `{run}` by the run's id, and `{label.NAME}` by its label. Other braces stay.

    `run` is the run of a bundle, `name` what the user calls it. Raises Failure for a label that it does not have.
    """
    labels: Mapping[str, str] = run.get("labels") or {}

    def value(match: re.Match[str]) -> str:
        if match[1] == "run":
            return str(run["id"])
        label = match[1].removeprefix("label.")
        if label not in labels:
            known = f"it has {', '.join(sorted(labels))}" if labels else "it has none"
            raise Failure(f"{name} has no label {label!r}, which the command names as {match[0]}; {known}")
        return labels[label]

    # In one pass, so that a label's text is never read as a placeholder.
    return tuple(_PLACEHOLDER.sub(value, word) for word in command)
