"""Plot distinct answers against load as an SVG, without a library."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from proxy.inference.tally import Tally

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 420, 64, 48, 24, 56
DIGIT, GAP = 7, 8
"""The width of a digit in a label, and the least distance between two labels."""

COLOURS: Final = ("#0b6e4f", "#c8553d")


def draw_plot(title: str, tallies: Sequence[Tally]) -> str:
    """Draw a line for each server: the distinct answers up to each load, of the subject with the most."""
    lines = {found.url: _distinct_by_load(found) for found in tallies}
    loads = sorted({load for line in lines.values() for load in line})
    highest = max((count for line in lines.values() for count in line.values()), default=1)
    parts = [_grid_svg(loads, highest)]
    for at, (name, line) in enumerate(lines.items()):
        parts.append(_series_svg(name, line, loads, highest, at))
    heading = f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="12"><rect width="100%" height="100%" fill="#fff"/>{heading}{"".join(parts)}</svg>\n'
    )


def _distinct_by_load(tally: Tally) -> Mapping[int, int]:
    worst = max(tally.subjects, key=lambda subject: subject.distinct, default=None)
    return worst.by_load if worst else {}


def labelled_loads(loads: Sequence[int]) -> list[int]:
    """Return the loads whose labels fit under the axis: the last one, and others before it at equal distances."""
    widest = max((len(str(load)) for load in loads), default=1) * DIGIT + GAP
    every = max(1, -(-len(loads) * widest // (WIDTH - LEFT - RIGHT)))
    return list(loads[::-1][::every][::-1])


def _x(load: int, loads: Sequence[int]) -> float:
    """Return the position of a load. Loads are spread evenly, because most double the one before."""
    return LEFT + (WIDTH - LEFT - RIGHT) * (loads.index(load) + 0.5) / len(loads)


def _y(count: int, highest: int) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * count / (highest + 1)


def _grid_svg(loads: Sequence[int], highest: int) -> str:
    step = max(1, (highest + 1) // 5)
    # A mark closer than half a step to the highest mark, or to 1, would overlap it.
    between = (mark for mark in range(0, highest, step) if step == 1 or (mark != 1 and highest - mark > step // 2))
    marks = sorted({1, highest, *between})
    rows = [
        f'<path d="M{LEFT} {_y(mark, highest):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{_y(mark, highest) + 4:.1f}" text-anchor="end">{mark}</text>'
        for mark in marks
    ]
    columns = [
        f'<text x="{_x(load, loads):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{load}</text>'
        for load in labelled_loads(loads)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    titles = [
        f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">requests at once</text>',
        f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">distinct answers so far</text>',
    ]
    return "".join(rows + columns + titles)


def _series_svg(name: str, line: Mapping[int, int], loads: Sequence[int], highest: int, at: int) -> str:
    colour = COLOURS[at % len(COLOURS)]
    points = [(_x(load, loads), _y(count, highest)) for load, count in line.items()]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points)
    label = f'<text x="{WIDTH - RIGHT}" y="{18 + 16 * at}" text-anchor="end" fill="{colour}">{escape(name)}</text>'
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}{label}'
