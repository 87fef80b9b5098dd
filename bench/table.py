"""Format the results of `bench.engines --json` as the tables of docs/performance.md.

    python -m bench.engines --json > rows.jsonl
    python -m bench.table rows.jsonl [--into docs/performance.md] [--plot docs/performance.svg]

`--into` replaces the text between the page's two marks, so that no figure is typed by hand.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.figures import Spread
from bench.plot import plot
from bench.results import Result, read, targets
from bench.workloads import ORDER, STORED, WORKLOADS

BEGIN: Final = "<!-- bench.table begins: not typed -->\n"
END: Final = "<!-- bench.table ends -->\n"

DELAYED: Final = ("small-paced", "sse50", "sse200", "sse400", "connect-known", "connect-new")
"""Workloads for which delays are shown. Under a full load a delay is that of the queue."""

FAST: Final = ("small", "large", "replay", "sse200", "sse400")
"""Workloads for which the throughput is shown."""

type Cell = Callable[[Result], str | None]


def page(results: Sequence[Result]) -> str:
    """Return all tables as Markdown."""
    parts = [_where(results)]
    for unit in ("call", "event", "connection"):
        workloads = [name for name, workload in WORKLOADS.items() if workload.unit == unit]
        parts.append(
            _table(f"µs of CPU for each {unit}", results, workloads, lambda result: _cell(result.over("cpu_us")))
        )
    parts.append(_table("a second, of the box", results, FAST, lambda result: _cell(result.over("per_s"))))
    parts.append(_table("ms p50 / p99", results, DELAYED, _delays))
    parts.append(_table("KiB for each open stream", results, ["memory"], lambda result: _cell(result.over("kib"))))
    parts += [_cost_table(results), _target_table(results), _missing_figures(results)]
    return "\n\n".join(part for part in parts if part)


def _where(results: Sequence[Result]) -> str:
    if not results:
        return ""
    machine = results[0].machine
    rounds = max(result.rounds for result in results)
    facts = {name: machine.get(name, "unknown") for name in ("cores", "cpu", "kernel", "python", "load", "date")}
    return (
        "Medians of {rounds} rounds [lowest-highest]; {cores} cores of {cpu}, Linux {kernel}, Python {python}, load average "
        "{load:.1f} before, {date}.".format(rounds=rounds, **facts)
    )


def _table(title: str, results: Sequence[Result], workloads: Sequence[str], cell: Cell) -> str:
    """Return a table of engines by workloads. Engines without figures are left out."""
    cells = {(result.engine, result.workload): text for result in results if (text := cell(result))}
    columns = [name for name in workloads if any(workload == name for _, workload in cells)]
    rows = [name for name in ORDER if any((name, workload) in cells for workload in columns)]
    lines = [[name, *(cells.get((name, workload), "") for workload in columns)] for name in rows]
    return _markdown([title, *columns], lines) if lines else ""


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(spread: Spread | None) -> str | None:
    return None if spread is None else f"{spread:{_precision(spread.median)}}"


def _precision(value: float) -> str:
    """Return three significant digits, and all digits of larger numbers."""
    return ".2f" if abs(value) < 1 else ".1f" if abs(value) < 100 else ".0f"


def _delays(result: Result) -> str | None:
    if result.p50_ms is None or result.p99_ms is None:
        return None
    return f"{result.p50_ms:.2f} / {result.p99_ms:{_precision(result.p99_ms)}}"


def _cost_table(results: Sequence[Result]) -> str:
    """Return the CPU of a stored call by process."""
    parts = ("worker_us", "store_us", "postgres_us", "cpu_us")
    for result in results:
        if result.engine == STORED and result.cpu_us is not None:
            lines = [["small", *(_cell(result.over(part)) or "" for part in parts)]]
            return _markdown(
                ["µs of CPU until a call is in its rows", "proxy worker", "store server", "Postgres", "sum"], lines
            )
    return ""


def _target_table(results: Sequence[Result]) -> str:
    lines = [
        [
            target.description,
            f"{target.found:{target.spelled}}",
            f"{'at least' if target.least else 'at most'} {target.goal:,g}",
            "kept" if target.is_met else "**missed**",
        ]
        for target in targets(results)
    ]
    return _markdown(["promised", "found", "wanted", ""], lines) if lines else ""


def _missing_figures(results: Sequence[Result]) -> str:
    """Return why figures, or rounds, are missing; once for workloads with the same reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.why:
            reasons.setdefault((result.engine, result.why), []).append(result.workload)
    return "\n".join(f"- {engine} ({', '.join(names)}): {why}" for (engine, why), names in reasons.items())


def place_table(text: str, table: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """Return a page with the tables between its marks. Raises ValueError if it has none."""
    first, last = marks
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise ValueError(
            f"the page lacks the lines {first.strip()!r} and {last.strip()!r}, between which the tables go"
        )
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="what `bench.engines --json` printed")
    parser.add_argument(
        "--into", type=Path, metavar="PAGE", help="instead of on stdout, between the marks of this page"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write an SVG as well")
    return parser


def main() -> None:
    arguments = options().parse_args()
    found = read(arguments.rows.read_text("utf-8").splitlines())
    if arguments.into:
        arguments.into.write_text(place_table(arguments.into.read_text("utf-8"), page(found)), "utf-8")
    else:
        sys.stdout.write(f"{page(found)}\n")
    if arguments.plot:
        arguments.plot.write_text(plot(found), "utf-8")


if __name__ == "__main__":
    main()
