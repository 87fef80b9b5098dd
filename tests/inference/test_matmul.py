"""A row that comes alone is multiplied in company, and nobody notices."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from playhead_inference.matmul import pair
from playhead_inference.switch import SWITCH


@dataclass(frozen=True)
class Rows:
    """The little of a tensor that is asked for."""

    shape: tuple[int, ...]

    def numel(self) -> int:
        size = 1
        for length in self.shape:
            size *= length
        return size

    def reshape(self, *shape: int) -> "Rows":
        assert Rows(shape).numel() == self.numel()
        return Rows(shape)

    def expand(self, *shape: int) -> "Rows":
        return Rows(shape)

    def contiguous(self) -> "Rows":
        return self

    def __getitem__(self, part: slice) -> "Rows":
        return Rows((len(range(self.shape[0])[part]), *self.shape[1:]))


def multiplied(seen: list[tuple[int, ...]]) -> Any:
    """vLLM's custom ops with a matmul to 3 columns that tells what it was given; taught twice."""

    def onednn_mm(_: Any, rows: Rows, bias: Any) -> Rows:
        seen.append(rows.shape)
        return Rows((*rows.shape[:-1], 3))

    ops = SimpleNamespace(onednn_mm=onednn_mm)
    pair(ops)
    pair(ops)
    return ops.onednn_mm


@pytest.mark.parametrize(
    ("given", "seen", "answered"),
    [
        ((1, 8), (2, 8), (1, 3)),
        ((8,), (2, 8), (3,)),
        ((1, 1, 8), (2, 8), (1, 1, 3)),
        ((2, 8), (2, 8), (2, 3)),
        ((64, 8), (64, 8), (64, 3)),
        ((0, 8), (0, 8), (0, 3)),
    ],
)
def test_one_row_gets_a_twin_and_its_own_shape_back(
    given: tuple[int, ...], seen: tuple[int, ...], answered: tuple[int, ...]
) -> None:
    told: list[tuple[int, ...]] = []
    assert multiplied(told)(None, Rows(given), None).shape == answered
    assert told == [seen]


def test_the_control_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SWITCH, "on", False)
    told: list[tuple[int, ...]] = []
    multiplied(told)(None, Rows((1, 8)), None)
    assert told == [(1, 8)]
