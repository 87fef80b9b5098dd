"""A single row is multiplied together with a copy, without a visible difference."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from playhead_inference.matmul import piece_bounds, replace_experts, replace_matmul
from playhead_inference.switch import BLOCK, SWITCH


@dataclass(frozen=True)
class Rows:
    """A fake tensor with the few methods that are used."""

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


def recording_matmul(seen: list[tuple[int, ...]]) -> Any:
    """vLLM's custom ops with a matmul to 3 columns that records its arguments, patched twice."""

    def onednn_mm(_: Any, rows: Rows, bias: Any) -> Rows:
        seen.append(rows.shape)
        return Rows((*rows.shape[:-1], 3))

    ops = SimpleNamespace(onednn_mm=onednn_mm)
    replace_matmul(ops)
    replace_matmul(ops)
    return ops.onednn_mm


@pytest.mark.parametrize(
    ("given", "seen", "answered"),
    [
        ((1, 8), (2, 8), (1, 3)),
        ((8,), (2, 8), (3,)),
        ((1, 1, 8), (2, 8), (1, 1, 3)),
        ((2, 8), (2, 8), (2, 3)),
        ((64, 8), (64, 8), (64, 3)),
        ((BLOCK, 8), (BLOCK, 8), (BLOCK, 3)),
        ((0, 8), (0, 8), (0, 3)),
    ],
)
def test_one_row_gets_a_twin_and_its_own_shape_back(
    given: tuple[int, ...], seen: tuple[int, ...], answered: tuple[int, ...]
) -> None:
    messages: list[tuple[int, ...]] = []
    assert recording_matmul(messages)(None, Rows(given), None).shape == answered
    assert messages == [seen]


def test_the_control_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SWITCH, "on", False)
    messages: list[tuple[int, ...]] = []
    recording_matmul(messages)(None, Rows((1, 8)), None)
    assert messages == [(1, 8)]


def test_a_batch_is_computed_in_pieces_of_at_most_a_block_and_never_of_one_row() -> None:
    for rows in (1, 2, BLOCK, BLOCK + 1, BLOCK + 2, 3 * BLOCK + 1, 8 * BLOCK):
        bounds = piece_bounds(rows)
        assert [begin for begin, _ in bounds[1:]] == [end for _, end in bounds[:-1]]
        assert (bounds[0][0], bounds[-1][1]) == (0, rows)
        assert all(end - begin <= BLOCK for begin, end in bounds)
        assert rows == 1 or all(end - begin >= 2 for begin, end in bounds)


def test_experts_get_the_rows_of_a_piece_and_all_weights() -> None:
    seen: list[tuple[int, int]] = []

    def cpu_fused_moe(
        out: Any, rows: Any, w13: Any, w2: Any, b13: Any, b2: Any, weights: Any, ids: Any, act: str
    ) -> None:
        assert (w13, w2, b13, b2, act) == ("w13", "w2", None, None, "silu")
        assert len(out) == len(rows) == len(weights) == len(ids)
        seen.append((rows[0], len(rows)))

    module = SimpleNamespace(cpu_fused_moe=cpu_fused_moe)
    replace_experts(module)
    replace_experts(module)
    rows = list(range(2 * BLOCK + 1))
    module.cpu_fused_moe(rows, rows, "w13", "w2", None, None, rows, rows, "silu")
    assert seen == [(0, BLOCK), (BLOCK, BLOCK - 1), (2 * BLOCK - 1, 2)]
