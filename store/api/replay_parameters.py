"""Read and check the options of a replay or fork that is made over REST.

The worker makes the edits, when the first request comes. Whether they can be made is tried here, by what `Desk.unfit` holds of the
rooms above; a store server without it checks what the wishes alone can tell.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from calls.overrides.overrides import BadOverride, cleaned, listed
from store.api.deps import Deps
from store.api.problems import Problem
from store.bundle.bundle import Bundle, Entry

type Overrides = Annotated[list[Any], Field(max_length=1000)]


async def fits(desk: Deps, run: str, wishes: Mapping[str, Any], name: str) -> None:
    """Raises Problem where the recording cannot be answered from in that way."""
    if desk.unfit is None or not (wishes["overrides"] or wishes["fork"]):
        return
    await desk.recorded.check_run(run, is_held=True)
    exchanges = [Entry(exchange=each) async for each in desk.recorded.exchanges(run)]
    bundle = Bundle(run={"id": run}, profiles="", entries=tuple(exchanges))
    if why := await asyncio.to_thread(desk.unfit, bundle, wishes, desk.profiles, desk.clean, name):
        raise Problem(422, "bad_override", f"{why} (docs/forks.md)")


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
