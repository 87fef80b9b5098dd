"""Ids grow, whatever the clock does, and say when they were made."""

import random
import uuid
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from calls.uuid7 import Uuid7

NS = 1_000_000


@given(st.lists(st.integers(0, 2**47 * NS), min_size=1, max_size=50), st.integers())
def test_each_is_greater_than_the_one_before(clock: list[int], seed: int) -> None:
    times = iter(clock)
    make = Uuid7(lambda: next(times), random.Random(seed).getrandbits)

    made = [make() for _ in clock]

    assert made == sorted(set(made))
    assert all(uuid.UUID(one).version == 7 and uuid.UUID(one).variant == uuid.RFC_4122 for one in made)
    assert uuid.UUID(made[0]).int >> 80 == clock[0] // NS


def test_a_million_in_one_millisecond_stay_in_order() -> None:
    make = Uuid7(lambda: 7 * NS, lambda bits: 2**bits - 1)

    made = [make() for _ in range(100_000)]

    assert all(one < other for one, other in pairwise(made))
