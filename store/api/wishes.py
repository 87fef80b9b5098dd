"""What can be wished for of a replay or a fork over REST, checked as far as it can be without its recording.

The door makes the edits, when the first request comes. What cannot be made then is said to whoever asks.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from calls.overrides import BadOverride, cleaned, listed
from store.api.problems import Problem

type Overrides = Annotated[list[Any], Field(max_length=1000)]


def checked(entries: Sequence[Any], steps: int, clean: Callable[[str], str]) -> list[Any]:
    """The overrides as they may be kept. Raises Problem."""
    try:
        overrides = listed(entries)
        for override in overrides:
            if override.step is not None and override.step > steps:
                raise override.wrong(f"there is no step {override.step}: {steps} steps are answered from the record")
    except BadOverride as error:
        raise Problem(422, "bad_override", f"{error} (docs/forks.md)") from error
    return cleaned(entries, clean)
