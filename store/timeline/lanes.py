"""Give steps that overlap lanes of their own. Pure.

The calls of a branch share one lane, and a branch that begins after another one ended may share its lane. A call that is on no
branch is put wherever its lane is free. Calls of one branch that overlap (tools that run in parallel) get further lanes.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class StepTime(NamedTuple):
    """The time of a step."""

    call: str
    actor: str | None
    branch: Hashable
    """None: no branch."""

    start: int
    end: int


@dataclass(slots=True)
class Lane:
    """A row of a waterfall, whose steps follow one another."""

    actor: str | None
    branches: list[Hashable] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    reserved_until: int = -1
    """The end of the newest branch on it."""

    @property
    def start(self) -> int:
        """When its first step begins."""
        return self._starts[0]

    def is_free(self, span: StepTime) -> bool:
        """Whether no step of the lane overlaps with this one."""
        place = bisect_left(self._starts, span.start)
        before = self._ends[place - 1] if place else -1
        after = self._starts[place] if place < len(self._starts) else span.end
        return before <= span.start and span.end <= after

    def add(self, span: StepTime) -> None:
        """Put a step into the lane, which is free."""
        place = bisect_left(self._starts, span.start)
        self._starts.insert(place, span.start)
        self._ends.insert(place, span.end)
        if span.branch is not None and span.branch not in self.branches:
            self.branches.append(span.branch)


class LanePlan(NamedTuple):
    """The lanes from the top, and the number of the lane of each call."""

    lanes: Sequence[Lane]
    places: Mapping[str, int]


def assign_lanes(spans: Iterable[StepTime]) -> LanePlan:
    """Give each step a lane in which it overlaps with no other."""
    lanes: list[Lane] = []
    chosen: dict[str, Lane] = {}
    branches: dict[Hashable, list[StepTime]] = {}
    alone: list[StepTime] = []
    for span in sorted((_lasting(span) for span in spans), key=lambda one: (one.start, one.end, one.call)):
        if span.branch is None:
            alone.append(span)
        else:
            branches.setdefault((span.actor, span.branch), []).append(span)
    for members in branches.values():
        _place_branch(members, lanes, chosen)
    for span in alone:
        _place(span, [lane for lane in lanes if lane.actor == span.actor], lanes, chosen)
    lanes.sort(key=lambda one: one.start)
    numbers = {id(lane): number for number, lane in enumerate(lanes)}
    return LanePlan(lanes, {call: numbers[id(lane)] for call, lane in chosen.items()})


def _lasting(span: StepTime) -> StepTime:
    """Give a step without a duration one: two of them at one moment must not be drawn over one another."""
    return span if span.end > span.start else span._replace(end=span.start + 1)


def _place_branch(members: Sequence[StepTime], lanes: list[Lane], chosen: dict[str, Lane]) -> None:
    start, end = members[0].start, max(span.end for span in members)
    own = [lane for lane in lanes if lane.actor == members[0].actor and lane.reserved_until <= start]
    for span in members:
        _place(span, own, lanes, chosen)
        if chosen[span.call] not in own:
            own.append(chosen[span.call])
    for lane in {id(chosen[span.call]): chosen[span.call] for span in members}.values():
        lane.reserved_until = max(lane.reserved_until, end)


def _place(span: StepTime, usable: Iterable[Lane], lanes: list[Lane], chosen: dict[str, Lane]) -> None:
    lane = next((lane for lane in usable if lane.is_free(span)), None)
    if lane is None:
        lane = Lane(span.actor)
        lanes.append(lane)
    lane.add(span)
    chosen[span.call] = lane
