"""Pieces at recorded boundaries, times by the pace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Body, Chunk
from replay.pacing import INSTANT, RECORDED, Pace, parse_pace
from tests.replay.strategies import body


@given(st.lists(st.binary(min_size=1, max_size=5)))
def test_pieces_are_the_recorded_ones(recorded: list[bytes]) -> None:
    assert [piece.data for piece in INSTANT.pieces(body(*recorded))] == recorded


def test_an_instant_pace_waits_for_nothing() -> None:
    assert {piece.at for piece in INSTANT.pieces(body(b"a", b"b"))} == {0}


def test_a_recorded_pace_keeps_the_times() -> None:
    assert [piece.at for piece in RECORDED.pieces(body(b"a", b"b"))] == [1_000_000, 2_000_000]


def test_a_factor_stretches_them() -> None:
    assert [piece.at for piece in Pace(0.5).pieces(body(b"a", b"b"))] == [500_000, 1_000_000]


@given(st.binary(min_size=1), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))))
def test_whatever_the_chunks_say_every_byte_is_sent_once_and_no_piece_is_empty(
    data: bytes, spans: list[tuple[int, ...]]
) -> None:
    chunks = tuple(Chunk(at, offset, size) for at, offset, size in spans)
    pieces = list(RECORDED.pieces(Body(data=data, chunks=chunks, size=len(data))))
    assert b"".join(piece.data for piece in pieces) == data
    assert all(piece.data for piece in pieces)


@pytest.mark.parametrize(("text", "factor"), [("instant", 0), ("recorded", 1), ("0.5", 0.5), ("0", 0)])
def test_a_pace_has_a_name_or_a_number(text: str, factor: float) -> None:
    assert parse_pace(text).factor == factor


@pytest.mark.parametrize("text", ["", "fast", "-1", "nan", "inf"])
def test_what_is_no_pace_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ValueError, match=r"instant, recorded, or a factor"):
        parse_pace(text)
