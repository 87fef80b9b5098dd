"""A tile depends only on its own request, whatever the batch contains and wherever a chunk ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playhead_inference.tiles import ROWS, Tiles, cut, width

REQUESTS = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 900)), min_size=1, max_size=12)
"""Requests as (queries, context before them)."""


def batch(requests: list[tuple[int, int]], positions: int) -> Tiles:
    starts = [0]
    for queries, _ in requests:
        starts.append(starts[-1] + queries)
    return cut(starts, [queries + context for queries, context in requests], positions)


def of(tiles: Tiles, row: int) -> list[tuple[int, int]]:
    """A request's tiles as (queries, context with them), which is all that the kernel gets."""
    return [
        (tiles.starts[at + 1] - tiles.starts[at], tiles.lengths[at])
        for at, owner in enumerate(tiles.request)
        if owner == row
    ]


@given(REQUESTS, st.sampled_from([1, 2, 4, 5, 8, 16]))
def test_neighbours_do_not_change_a_request_s_tiles(requests: list[tuple[int, int]], positions: int) -> None:
    together = batch(requests, positions)
    for row, request in enumerate(requests):
        assert of(together, row) == of(batch([request], positions), 0)


@given(REQUESTS, st.sampled_from([1, 2, 4, 5, 8, 16]))
def test_every_query_is_in_one_tile_and_none_is_too_wide(requests: list[tuple[int, int]], positions: int) -> None:
    tiles = batch(requests, positions)
    assert tiles.starts[-1] == sum(queries for queries, _ in requests)
    assert list(tiles.starts) == sorted(set(tiles.starts))
    assert 1 <= tiles.longest <= positions
    for row, (queries, context) in enumerate(requests):
        ends = [length for _, length in of(tiles, row)]
        assert ends[-1] == queries + context
        assert all(end % positions == 0 for end in ends[:-1])


@given(st.integers(1, 200), st.integers(1, 199), st.sampled_from([1, 2, 4, 5, 8, 16]))
def test_a_chunk_s_end_moves_no_tile_but_the_one_it_cuts(length: int, chunk: int, positions: int) -> None:
    whole = {end for _, end in of(batch([(length, 0)], positions), 0)}
    cut_at = min(chunk, length)
    parts = of(batch([(cut_at, 0)], positions), 0)
    if cut_at < length:
        parts += of(batch([(length - cut_at, cut_at)], positions), 0)
    assert {end for _, end in parts} - whole <= {cut_at}


@pytest.mark.parametrize(("heads", "kv_heads", "positions"), [(8, 8, 8), (8, 4, 4), (9, 3, 2), (12, 2, 1), (8, 1, 1)])
def test_a_tile_fits_one_iteration_of_the_kernel(heads: int, kv_heads: int, positions: int) -> None:
    assert width(heads, kv_heads) == positions
    assert positions * (heads // kv_heads) <= ROWS


def test_more_heads_on_a_kv_head_than_the_kernel_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        width(32, 1)
