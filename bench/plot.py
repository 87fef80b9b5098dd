"""Draw the results of `bench.engines` as a self-contained SVG for light and dark backgrounds.

There is one panel for each workload and one line for each engine: its median as a dot, the range of its rounds as a
bar. The scale is logarithmic, because the engines differ by two orders of magnitude; therefore bars do not begin at an
axis.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from bench.figures import Spread
from bench.results import Result
from bench.workloads import ORDER, WORKLOADS

PANELS: Final = ("small", "large", "sse50", "replay", "connect-known")
WIDTH, LEFT, RIGHT = 760, 150, 96
LINE, HEAD, GAP = 20, 30, 34

# CSS in the picture itself: where an <img> shows it, the page's own styles do not reach in.
STYLE: Final = """
text{fill:#1f2328;font:12px system-ui,sans-serif}.back{fill:#fff}.grid{stroke:#d8dee4}.soft{fill:#59636e}
.head{font-weight:600;font-size:13px}.ours{fill:#0b6e4f;stroke:#0b6e4f}.theirs{fill:#8c5a12;stroke:#8c5a12}.range{stroke-width:4;opacity:.35}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.grid{stroke:#30363d}.soft{fill:#9198a1}
.ours{fill:#4ac29a;stroke:#4ac29a}.theirs{fill:#e3a750;stroke:#e3a750}}
"""


def plot(results: Sequence[Result]) -> str:
    """Return an SVG of the CPU of each unit, by workload."""
    known = {
        (result.engine, result.workload): spread
        for result in results
        if result.workload in PANELS and (spread := result.over("cpu_us"))
    }
    scale = Scale.of([value for spread in known.values() for value in (spread.low, spread.high)])
    y, drawn = 56.0, [_title()]
    for workload in PANELS:
        engines = [name for name in ORDER if (name, workload) in known]
        if engines:
            drawn.append(_panel(workload, [(name, known[name, workload]) for name in engines], scale, y))
            y += HEAD + LINE * len(engines) + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" role="img" aria-label="{TITLE}">'
        f'<style>{STYLE}</style><rect class="back" width="100%" height="100%"/>{"".join(drawn)}</svg>\n'
    )


TITLE: Final = "CPU of each engine's process, µs"


def _title() -> str:
    what = "dot: median of the rounds; bar: lowest to highest; the scale is logarithmic; less is better"
    key = [(WIDTH - 190, "ours", "Playhead"), (WIDTH - 100, "theirs", "others")]
    dots = [f'<circle class="{whose}" cx="{x}" cy="20" r="4"/>{_text(x + 10, 24, name, "")}' for x, whose, name in key]
    return _text(16, 24, TITLE, "head") + _text(16, 42, what, "soft") + "".join(dots)


class Scale:
    """A logarithmic scale, from the power of ten below the least value to the one above the greatest."""

    def __init__(self, low: int, high: int) -> None:
        self.decades = range(low, high + 1)

    @classmethod
    def of(cls, values: Sequence[float]) -> "Scale":
        """Return a scale for all of the values."""
        positive = [value for value in values if value > 0] or [1.0]
        low = math.floor(math.log10(min(positive)))
        return cls(low, max(math.ceil(math.log10(max(positive))), low + 1))

    def x(self, value: float) -> float:
        """Return the position of a value. Values below the scale are at its beginning."""
        first, last = self.decades[0], self.decades[-1]
        share = (math.log10(max(value, 10.0**first)) - first) / (last - first)
        return LEFT + (WIDTH - LEFT - RIGHT) * share


def _panel(workload: str, lines: Sequence[tuple[str, Spread]], scale: Scale, y: float) -> str:
    bottom = y + HEAD + LINE * len(lines)
    kind = WORKLOADS[workload]
    head = _text(16, y + 12, workload, "head") + _text(
        LEFT, y + 12, f"for each {kind.unit}: {kind.description}", "soft"
    )
    return head + "".join([*_grid(scale, y + HEAD - 8, bottom - 4), *_lines(lines, scale, y + HEAD)])


def _grid(scale: Scale, top: float, bottom: float) -> Iterator[str]:
    for decade in scale.decades:
        x = scale.x(10.0**decade)
        yield f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
        yield _text(x, bottom + 14, f"{10.0**decade:,.6g}", "soft", "middle")


def _lines(lines: Sequence[tuple[str, Spread]], scale: Scale, y: float) -> Iterator[str]:
    for at, (name, spread) in enumerate(lines):
        middle = y + LINE * at + LINE / 2 - 4
        low, high, dot = scale.x(spread.low), scale.x(spread.high), scale.x(spread.median)
        whose = "ours" if name.startswith(("lane", "mitmproxy-r")) else "theirs"
        yield _text(LEFT - 10, middle + 4, name, "", "end")
        yield f'<path class="{whose} range" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>'
        yield f'<circle class="{whose}" cx="{dot:.1f}" cy="{middle:.1f}" r="4"/>'
        yield _text(max(high, dot) + 9, middle + 4, f"{spread.median:,.{0 if spread.median >= 100 else 1}f}", "soft")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
