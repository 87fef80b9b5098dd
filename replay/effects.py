"""The recorded effects of a replay: what each process gets, and how many of them it asked for."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from calls.effects.items import FIRST
from calls.events import EffectBatch
from calls.model import Json
from calls.overrides.effect_values import EffectValue
from calls.overrides.overrides import Override
from replay.pinned import PINNED_VARIABLES

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
    overridden: dict[str, int] = {}
    """How often each override was used, by its number."""


class EffectsReplay(msgspec.Struct, kw_only=True):
    """The effects of one replay."""

    batches: Sequence[EffectBatch]
    goes_live: bool = False
    """Whether the run leaves its record, as a fork does: then an effect that was not recorded is none that was missed."""

    is_recorded: bool = False
    """Whether what the program gets is recorded again, as effects of another run."""

    overrides: Sequence[Override] = ()
    on_change: Callable[[], None] = lambda: None
    """Called after each change of the report."""

    connected: int = 0
    """Processes that are connected: until they are gone, how they go has to be noted here."""

    _states: dict[str, _State] = msgspec.field(default_factory=dict)

    def saved_state(self) -> dict[str, _State]:
        """How the replay of each process went. Its position in what was recorded is the hook's."""
        return self._states

    def restore_state(self, state: dict[str, _State]) -> None:
        """Restore a saved state."""
        self._states = state

    @property
    def processes(self) -> list[str]:
        """The processes that were recorded."""
        return sorted({one.process for one in self.batches if is_program(one.process)})

    def items_of(self, process: str) -> list[bytes]:
        """Return the recorded effects of a process, as JSON arrays in order."""
        return [one.items for one in self.batches if one.process == process]

    def note(self, process: str, state: Mapping[str, Any]) -> None:
        """Note how the replay of a process's effects goes. Raises ValueError for something else."""
        if process in self._states or len(self._states) < MOST_PROCESSES:
            self._states[process] = msgspec.convert(state, _State)
            self.on_change()

    @property
    def has_missed(self) -> bool:
        """Whether a process asked for something that was not recorded, also where that is allowed."""
        return any(state.missed for state in self._states.values())

    def rules(self) -> list[dict[str, Json]]:
        """Return the overrides as rules for the hook. A clock is moved by as much in all processes."""
        return [self._rule(one) for one in self.overrides if isinstance(one.change, EffectValue)]

    def _rule(self, override: Override) -> dict[str, Json]:
        change = override.change
        assert isinstance(change, EffectValue)
        rule = change.rule(override.number)
        if change.action != "clock":
            return rule
        first = min(self._readings(change.kinds), default=None)
        return rule | {"moved_by": None if first is None else str(int(str(change.value)) - first)}

    def _readings(self, kinds: Sequence[str]) -> Iterator[int]:
        for batch in self.batches:
            if any(kind.encode() in batch.items for kind in kinds):
                yield from (int(item[FIRST]) for item in msgspec.json.decode(batch.items) if item["kind"] in kinds)

    def report_with_overrides(self, report: Mapping[str, Json]) -> dict[str, Json]:
        """Add the overrides of effects to a report. One that was never used makes the replay diverge."""
        if not self.overrides:
            return {**report}
        used = Counter[str]()
        for state in self._states.values():
            used.update(state.overridden)
        # The launcher sets these before the program starts.
        used.update(str(one.number) for one in self.overrides if _is_pinned(one))
        entries: list[Json] = [
            {
                "override": one.number,
                "where": one.place,
                "what": one.change_name,
                "steps": [],
                "answered": used[str(one.number)],
            }
            for one in self.overrides
        ]
        idle = sum(not used[str(one.number)] for one in self.overrides)
        others = report.get("overrides")
        listed = sorted([*(others if isinstance(others, list) else []), *entries], key=_override_number)
        verdict = "diverged" if idle and report["verdict"] == "right" else report["verdict"]
        before = report.get("overrides_idle")
        whole: dict[str, Json] = {
            "overrides": listed,
            "overrides_idle": (before if isinstance(before, int) else 0) + idle,
        }
        return {**report, **whole, "verdict": verdict}

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
            "overridden": sum(sum(state.overridden.values()) for state in states.values()),
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


def _override_number(entry: Json) -> int:
    return int(str(entry["override"])) if isinstance(entry, Mapping) else 0


def pinned_variables(batches: Sequence[EffectBatch], overrides: Sequence[Override] = ()) -> dict[str, str]:
    """Return the variables that a replay sets as they were when the first process of the run was recorded, or as overrides say."""
    pinned = _recorded_variables(batches)
    for one in overrides:
        if _is_pinned(one):
            assert isinstance(one.change, EffectValue)
            pinned[str(one.change.of)] = str(one.change.value or "")
    return pinned


def _is_pinned(override: Override) -> bool:
    """Whether an override is of a variable that a whole process has from its start."""
    change = override.change
    return isinstance(change, EffectValue) and change.name.startswith("env:") and change.of in PINNED_VARIABLES


def _recorded_variables(batches: Sequence[EffectBatch]) -> dict[str, str]:
    for one in batches:
        if one.process == "0" and one.number == 0:
            first = msgspec.json.decode(one.items)[0]
            if first["kind"] == PINNED:
                return {name: value for name, value in first.get("args", {}).items() if isinstance(value, str)}
    return {}
