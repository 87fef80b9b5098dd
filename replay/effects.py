"""The recorded effects of a replay: what each process gets, and how many of them it asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from calls.events import EffectBatch
from calls.model import Json

MISSES_LISTED: Final = 20
"""Effects that were not recorded, of which a report lists the place and the nearest recorded one."""

MOST_PROCESSES: Final = 1000
PINNED: Final = "process.start"
"""The kind of the first effect of a process: the variables that decide about time zone, locale and hashing."""


class _State(msgspec.Struct, frozen=True):
    """How the replay of a process's effects goes, as its hook says."""

    served: int = 0
    missed: int = 0
    unused: int = 0
    library: int = 0
    """Of installed packages, answered by what happened now: these are no misses."""

    misses: list[dict[str, Any]] = []
    output: str = ""
    """`same` or `differs`, if the process has ended."""

    ended: bool = False


@dataclass(slots=True, kw_only=True)
class EffectsReplay:
    """The effects of one replay."""

    batches: Sequence[EffectBatch]
    goes_live: bool = False
    """Whether the run leaves its record, as a fork does: then an effect that was not recorded is none that was missed."""

    on_change: Callable[[], None] = lambda: None
    """Called after each change of the report."""

    _states: dict[str, _State] = field(default_factory=dict)

    @property
    def processes(self) -> list[str]:
        """The processes that were recorded."""
        return sorted({one.process for one in self.batches if is_program(one.process)})

    def items_of(self, process: str) -> list[bytes]:
        """Return the recorded effects of a process, as JSON arrays in order."""
        return [one.items for one in self.batches if one.process == process]

    def note(self, process: str, told: Mapping[str, Any]) -> None:
        """Note how the replay of a process's effects goes. Raises ValueError for something else."""
        if process in self._states or len(self._states) < MOST_PROCESSES:
            self._states[process] = msgspec.convert(told, _State)
            self.on_change()

    def exit_code(self) -> int | None:
        """The exit code of the recorded command, if it is known."""
        for one in self.batches:
            if one.process == COMMAND:
                for item in msgspec.json.decode(one.items):
                    if item["kind"] == "process.exit":
                        return int(item["results"][0])
        return None

    def report(self) -> dict[str, Json]:
        """Return what a report says about effects."""
        states = self._states
        misses = [
            {"process": process, **{name: str(value)[:500] for name, value in one.items()}}
            for process, state in states.items()
            for one in state.misses[:MISSES_LISTED]
        ][:MISSES_LISTED]
        listed: list[Json] = [*misses]
        differing: list[Json] = [*sorted(name for name, state in states.items() if state.output == "differs")]
        return {
            "recorded": sum(one.count for one in self.batches if is_program(one.process)),
            "served": sum(state.served for state in states.values()),
            "missed": 0 if self.goes_live else sum(state.missed for state in states.values()),
            "unused": sum(state.unused for state in states.values()),
            "library": sum(state.library for state in states.values()),
            "misses": [] if self.goes_live else listed,
            "output_differs": [] if self.goes_live else differing,
            "exit_code": self.exit_code(),
        }


def is_program(process: str) -> bool:
    """Return whether a process is one with the effects hook, and not a person or a framework that reported by itself."""
    return process[:1].isdigit()


COMMAND: Final = "command"
"""The process in whose name the launcher says how the command ended."""


def pinned_variables(batches: Sequence[EffectBatch]) -> dict[str, str]:
    """Return the variables that a replay sets as they were when the first process of the run was recorded."""
    for one in batches:
        if one.process == "0" and one.number == 0:
            first = msgspec.json.decode(one.items)[0]
            if first["kind"] == PINNED:
                return {name: value for name, value in first.get("args", {}).items() if isinstance(value, str)}
    return {}
