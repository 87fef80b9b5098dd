"""The page shows exactly the runs in the record, and the list of cells covers all pairs."""

import json
from itertools import chain, combinations, pairwise, product
from pathlib import Path
from typing import Any

import pytest
from proof.cells import FACTORS, Cell, pairwise_cover, repeated_cells
from proof.spread import interval, is_settled, summary
from proof.table import tables, write_tables

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "batch-invariance.md"
RECORD = ROOT / "inference" / "proof" / "record.jsonl"


def test_every_two_settings_meet_in_a_cell() -> None:
    for one, two in combinations(FACTORS, 2):
        met = {(getattr(cell, one), getattr(cell, two)) for cell in pairwise_cover()}
        assert met == set(product(FACTORS[one], FACTORS[two]))


def test_the_cover_is_small_and_no_name_means_two_cells() -> None:
    fewest = max(len(FACTORS[one]) * len(FACTORS[two]) for one, two in combinations(FACTORS, 2))
    assert fewest <= len(pairwise_cover()) <= fewest * 2
    cells = {*pairwise_cover(), *chain(*repeated_cells())}
    assert len({cell.name for cell in cells}) == len(cells)


def test_every_cell_asks_alone_and_as_many_at_once_as_it_says() -> None:
    for cell in pairwise_cover():
        first, *others = cell.waves
        assert first == (1, 0, 0)
        assert {sum(wave) for wave in others} == {cell.most}


def test_a_cache_that_preempts_has_room_for_one_and_not_for_all() -> None:
    for cell in pairwise_cover():
        if cell.blocks is not None:
            needles, long, _ = cell.waves[-1]
            assert cell.longest < cell.blocks * 32 < (needles + long) * cell.longest


def test_the_page_is_written_from_the_record() -> None:
    page = PAGE.read_text("utf-8")
    rows = [json.loads(line) for line in RECORD.read_text("utf-8").splitlines()]
    assert page == write_tables(page, rows), (
        "write it with: cd inference && python -m proof --page ../docs/batch-invariance.md"
    )


def row(cell: Cell, *, ours: int = 1, stock: int = 3) -> dict[str, Any]:
    """A row of the record."""
    side = {"answers": 5, "texts": 1, "digest": "ab" * 8, "preemptions": 0, "cached_tokens": 0}
    kept = {name: getattr(cell, name) for name in (*FACTORS, "threads", "answer", "chunk")}
    machine = {
        "vllm": "0.32.0",
        "torch": "2.13.0",
        "device": "A CPU",
        "isa": "AVX2",
        "patch": "c0ffee",
        "date": "2026-11-22",
    }
    return {
        "cell": cell.name,
        **kept,
        "stock": side | {"distinct": stock},
        "patched": side | {"distinct": ours},
        **machine,
    }


def test_what_varied_is_not_hidden() -> None:
    first, second, *_ = pairwise_cover()
    said = tables([row(first), row(second, ours=2, stock=1)])
    assert f"2 of the {len(pairwise_cover())} cells" in said
    assert "ours gave 1 distinct result in 1 of them, stock more than 1 in 1" in said
    assert "| 1 of 5 | **2** of 5 |" in said


def pair(ratio: float, others: float) -> dict[str, Any]:
    """A pair of cost measurements, in which the patched side took this ratio of the other."""
    stock, ours = {"wall": 1.0, "cpu": 2.0}, {"wall": ratio, "cpu": 2 * ratio}
    return {"cell": "cost", "work": "decode", "threads": 2, "others": others, "stock": stock, "patched": ours}


def test_a_pair_that_did_not_have_the_machine_to_itself_does_not_count() -> None:
    (found,) = summary([*(pair(1 + at / 100, 0.1) for at in range(9)), pair(9.0, 1.5)])
    assert (found["pairs"], found["quiet"]) == (10, 9)
    low, middle, high = found["wall"]
    assert middle == pytest.approx(1.04)
    assert all(before <= after for before, after in pairwise((1.0, low, middle, high, 1.08)))


def test_too_few_quiet_pairs_give_no_ratio() -> None:
    (found,) = summary([pair(1.1, 0.0), pair(1.1, 2.0)])
    assert found["wall"] is None
    assert found["cpu"] is None


def test_cpu_seconds_count_on_a_busy_machine_too() -> None:
    (found,) = summary([pair(1.1, 1.5) for _ in range(6)])
    assert found["wall"] is None
    assert found["cpu"] == (1.1, 1.1, 1.1)


def test_an_interval_narrows_with_rounds_and_holds_the_median() -> None:
    few, many = (interval([1 + (at % 7) / 50 for at in range(count)]) for count in (7, 200))
    assert few is not None
    assert many is not None
    assert few[0] <= few[1] <= few[2]
    assert many[2] - many[0] < few[2] - few[0]


def test_rounds_go_on_until_each_interval_is_narrow_enough() -> None:
    assert is_settled([pair(1.05, 0.0) for _ in range(9)])
    assert not is_settled([pair(1 + at % 2, 0.0) for at in range(9)])
    assert not is_settled([pair(1.05, 1.5) for _ in range(9)])
