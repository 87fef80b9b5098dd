"""Every thread's share of a buffer consists of whole vectors, for any number of rows and threads."""

import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

if "torch" not in sys.modules:
    try:
        import torch  # noqa: F401 # the server's environment has it, ours has not
    except ImportError:
        sys.modules["torch"] = ModuleType("torch")

from playhead_inference.elementwise import GRAIN, VECTORS, padded_length


@given(st.integers(1, 5_000_000), st.integers(1, 64))
def test_shares_are_whole_vectors_and_little_is_added(elements: int, threads: int) -> None:
    length = padded_length(elements, threads)
    shares = min(threads, -(-length // GRAIN))
    assert length >= elements
    assert length % shares == 0
    assert (length // shares) % VECTORS == 0
    assert length - elements < 2 * VECTORS * (threads + 1)


@pytest.mark.parametrize(("elements", "threads", "length"), [(1, 2, 64), (33_000, 2, 33_024), (14 * 4864, 4, 68_160)])
def test_a_length_is_the_least(elements: int, threads: int, length: int) -> None:
    assert padded_length(elements, threads) == length
