"""Read and check the options of a replay or fork that is created over REST.

The worker applies the edits, at the first request. `Deps.edit_problem`, which the store server is given, checks here whether
they can be applied; without it, only the options themselves are checked.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from calls.overrides.overrides import BadOverride, clean_entries, read_overrides
from store.api.deps import Deps
from store.api.problems import Problem
from store.bundle.bundle import Bundle, Entry

type Overrides = Annotated[list[Any], Field(max_length=1000)]


async def check_edits(deps: Deps, run: str, options: Mapping[str, Any], name: str) -> None:
    """Raise Problem where the recording cannot be edited or forked with these options."""
    if deps.edit_problem is None or not (options["overrides"] or options["fork"]):
        return
    await deps.call_reader.check_run(run, is_held=True)
    exchanges = [Entry(exchange=each) async for each in deps.call_reader.exchanges(run)]
    bundle = Bundle(run={"id": run}, profiles="", entries=tuple(exchanges))
    if why := await asyncio.to_thread(deps.edit_problem, bundle, options, deps.profiles, deps.clean, name):
        raise Problem(422, "bad_override", f"{why} (docs/forks.md)")


def checked_overrides(entries: Sequence[Any], steps: int, clean: Callable[[str], str]) -> list[Any]:
    """Return the overrides, redacted for storage. Raises Problem."""
    try:
        overrides = read_overrides(entries)
        for override in overrides:
            if override.step is not None and override.step > steps:
                raise override.error(f"there is no step {override.step}: {steps} steps are answered from the record")
    except BadOverride as error:
        raise Problem(422, "bad_override", f"{error} (docs/forks.md)") from error
    return clean_entries(entries, clean)
