"""Wall time as a recorder takes it, while the system's clock is set."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from proxy.clock import LASTING, SECOND, TOLERANCE, SteadyClock

HOUR = 3600 * SECOND


@dataclass
class System:
    """A system whose clock can be set: wall time is elapsed time and an offset."""

    elapsed: int = 5 * HOUR
    offset: int = 1_700_000_000 * SECOND

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.elapsed + self.offset, lambda: self.elapsed)


def test_a_jump_that_is_undone_leaves_no_trace() -> None:
    system = System()
    now = system.clock()
    right = system.offset
    for jump in (HOUR, -HOUR, 30 * 24 * HOUR):
        system.offset = right + jump
        system.elapsed += SECOND
        assert now() == system.elapsed + right
        system.offset = right
        system.elapsed += SECOND
        assert now() == system.elapsed + right


def test_a_jump_that_lasts_is_believed() -> None:
    system = System()
    now = system.clock()
    before = now()
    system.offset += HOUR
    assert now() == before
    system.elapsed += LASTING
    assert now() == system.elapsed + system.offset


@given(st.lists(st.integers(-TOLERANCE, TOLERANCE), max_size=50))
def test_a_clock_that_is_slewed_is_followed(steps: list[int]) -> None:
    system = System()
    now = system.clock()
    for step in steps:
        system.offset += step
        system.elapsed += SECOND
        assert now() == system.elapsed + system.offset
