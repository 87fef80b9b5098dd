"""The page's tables and picture, made from results."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plot import LEFT, RIGHT, WIDTH, Scale, plot
from bench.results import Result
from bench.table import BEGIN, END, page, place_table
from bench.workloads import ORDER, WORKLOADS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {"cpu": "a <fast> one", "cores": 2, "kernel": "6", "python": "3.13", "load": 0.25, "date": "2026-11-22"}


def result(engine: str, workload: str, *cpu_us: float, **more: object) -> Result:
    each = {"cpu_us": list(cpu_us)} | more.pop("each", {})  # type: ignore[operator]  # a mapping where it is given
    unit = WORKLOADS[workload].unit
    answer = {"cpu_us": sorted(cpu_us)[len(cpu_us) // 2] if cpu_us else None, "rounds": len(cpu_us), "machine": MACHINE}
    return Result(engine=engine, workload=workload, unit=unit, each=each, **(answer | more))  # type: ignore[arg-type]


SOME = [
    result("mitmproxy-bare", "small", 1500.0, 1400.0, 1600.0),
    result("lane-record", "small", 90.0, 80.0, 100.0, p50_ms=2.0, p99_ms=9.0),
    result("nginx", "small", 45.0, 40.0, 50.0),
    result("lane-record", "sse50", 45.0, p50_ms=0.4, p99_ms=1.2),
    result("hoverfly", "small", why="hoverfly is not on the PATH"),
    result("hoverfly", "large", why="hoverfly is not on the PATH"),
]


def test_engines_stand_in_one_order_and_figures_with_their_range() -> None:
    lines = [line for line in page(SOME).splitlines() if line.startswith(("| nginx", "| lane", "| mitmproxy"))]
    assert lines[:3] == [
        "| nginx | 45.0 [40.0-50.0] |",
        "| lane-record | 90.0 [80.0-100.0] |",
        "| mitmproxy-bare | 1500 [1400-1600] |",
    ]


def test_the_page_says_what_was_promised_and_where_it_was_measured() -> None:
    answer = page(SOME)
    assert "| CPU of lane-record over nginx, small | 2.00 [2.00-2.00] | at most 2 | kept |" in answer
    assert "2 cores of a <fast> one" in answer


def test_a_reason_is_given_once() -> None:
    assert page(SOME).splitlines()[-1] == "- hoverfly (small, large): hoverfly is not on the PATH"


def test_nothing_measured_is_an_empty_page() -> None:
    assert page([]) == ""


def test_placing_tables_twice_is_placing_them_once() -> None:
    text = f"before\n{BEGIN}old\n{END}after\n"
    once = place_table(text, "new")
    assert once == f"before\n{BEGIN}\nnew\n\n{END}after\n"
    assert place_table(once, "new") == once


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the lines"):
        place_table(f"{END}{BEGIN}", "new")


def test_the_project_s_page_can_be_filled() -> None:
    assert "new" in place_table(PAGE.read_text("utf-8"), "new")


def test_every_engine_of_a_workload_has_a_place_in_the_order() -> None:
    assert {name for workload in WORKLOADS.values() for name in workload.engines} <= set(ORDER)


def test_the_picture_names_every_engine_and_puts_less_to_the_left() -> None:
    drawn = ElementTree.fromstring(plot(SOME))
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"nginx", "lane-record", "mitmproxy-bare", "small", "sse50"} <= set(words)
    small = [float(dot.get("cx", "0")) for dot in drawn.iter(f"{SVG}circle")][2:5]
    assert all(left < right for left, right in pairwise(small))


def test_a_picture_of_nothing_is_one() -> None:
    ElementTree.fromstring(plot([]))


@given(st.lists(st.floats(1e-3, 1e9), min_size=1))
def test_a_scale_holds_what_it_was_made_of_in_its_order(values: list[float]) -> None:
    scale = Scale.of(values)
    places = [scale.x(value) for value in sorted(values)]
    assert places == sorted(places)
    assert places[0] >= LEFT - 1e-6
    assert places[-1] <= WIDTH - RIGHT + 1e-6
