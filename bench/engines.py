"""What each engine costs for each call, event and connection, beside the others.

Every engine is asked the same in turn, round after round, on one machine: read ratios of one run rather than its figures.
CPU is that of the engine's process alone; who asks and who is asked (Python, epoll, OpenSSL) are processes of their own, and
`direct` tells how fast they are with nothing between. Each round starts every engine anew.

engines: direct              nothing in between
         nginx               a reverse proxy with TLS on both sides that records nothing
         lane-relay          our lane, passing on only
         lane-record         our lane as `playhead up` starts it: redaction, and every message's end waits for the spool
         lane-record-stored  the same with its store server and Postgres: CPU of all three, until every call is in its rows
         lane-replay         our lane answering from a recording
         mitmproxy-bare      the least mitmproxy that passes everything on and keeps nothing
         mitmproxy-record, mitmproxy-replay   our workers on mitmproxy
         mitmdump            mitmproxy's own program with -w
         hoverfly            capturing, where it is on the PATH
         timefork            from PyPI, in an environment of its own; plain HTTP towards the client
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.bench_setup import BenchSetup, open_bench_setup
from bench.figures import Row, machine
from bench.peers import Absent
from bench.plot import plot
from bench.results import Result, lagging, results
from bench.table import page
from bench.wire import MeasurementFailed
from bench.workers import ENGINES, Engines, Sources
from bench.workloads import OTHERS, QUICK, STORED, WORKLOADS

OURS: Final = ("lane", "mitmproxy-r")
"""What the names of our own engines begin with: one that fails is a failure, not a row."""


class Measurements:
    """The rows measured so far, and why others are missing."""

    def __init__(self, engines: Sequence[str], workloads: Sequence[str], seconds: float) -> None:
        self.rows: list[Row] = []
        self.missing: dict[tuple[str, str], str] = {}
        self._engines = engines
        self._workloads = workloads
        self._seconds = seconds

    def round(self, setup: BenchSetup, sources: Sources, number: int) -> None:
        """Measure every engine once under each workload. The order alternates, so that none always comes first."""
        with setup.open_round(f"round-{number}") as fresh:
            engines = Engines(setup=fresh, sources=sources)
            for workload in self._workloads:
                names = self._select_engines(workload, number)
                for name in names if number % 2 else names[::-1]:
                    self._ask(engines, name, workload, number)

    def _select_engines(self, workload: str, number: int) -> list[str]:
        there, at_most = WORKLOADS[workload].engines, WORKLOADS[workload].at_most
        if at_most is not None and number >= at_most:
            return []
        return [name for name in self._engines if name in there and (name, workload) not in self.missing]

    def _ask(self, engines: Engines, name: str, workload: str, number: int) -> None:
        log(f"round {number + 1}: {workload}, {name}")
        try:
            found = engines.ask(name, workload, self._seconds)
        except Absent as absent:
            there = [each for each in self._workloads if name in WORKLOADS[each].engines]
            self.missing |= {(name, each): str(absent) for each in there}
            log(f"  {absent}")
        except MeasurementFailed as failed:
            self.missing[name, workload] = str(failed)
            log(f"  {failed}")
        else:
            self.rows.append(_row(name, workload, number, found))

    def results(self, where: Mapping[str, Any]) -> Iterator[Result]:
        """Yield the results, and the reason for each that is missing or incomplete."""
        reasons = dict(self.missing)
        for result in results(self.rows, where):
            why = reasons.pop((result.engine, result.workload), None)
            yield replace(result, why=why or lagging(result))
        for (engine, workload), why in reasons.items():
            unit = WORKLOADS[workload].unit
            yield Result(engine=engine, workload=workload, unit=unit, why=why, machine=where)


def _row(name: str, workload: str, number: int, figures: Mapping[str, Any]) -> Row:
    used, n, seconds = figures["cpu"], figures["n"], figures["seconds"]
    unit = WORKLOADS[workload].unit
    cpu = used["worker"] / n * 1e6 if "worker" in used and unit != "stream" else None
    shares = {f"{part}_cores": used[part] / seconds for part in ("worker", "load", "upstream") if part in used}
    return Row(
        engine=name,
        workload=workload,
        unit=unit,
        round=number,
        n=n,
        per_s=n / seconds,
        cpu_us=figures.get("cpu_us", cpu),
        mean_ms=figures.get("mean_ms"),
        p50_ms=figures["p50_ms"],
        p99_ms=figures["p99_ms"],
        detail=shares | figures.get("detail", {}),
    )


def log(what: str) -> None:
    """Print progress to stderr."""
    print(what, file=sys.stderr, flush=True)


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    workloads = "\n".join(f"         {name:20}{workload.description}" for name, workload in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.engines",
        description=f"{__doc__}\nworkloads:\n{workloads}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round of few engines and workloads, in less than a minute"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON result per line; `python -m bench.table` reads it"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write the results as an SVG")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.2, help="length of each window (%(default)s)")
    parser.add_argument("--engines", nargs="+", metavar="NAME", choices=list(ENGINES))
    parser.add_argument("--workloads", nargs="+", metavar="NAME", choices=list(WORKLOADS))
    parser.add_argument("--nginx", default="nginx", metavar="PATH", help="the nginx program, if it is not on the PATH")
    return parser


def main() -> int:
    """Measure, and print the tables or the results."""
    arguments = options().parse_args()
    rounds, seconds = (1, 0.7) if arguments.quick else (arguments.rounds, arguments.seconds)
    engines = arguments.engines or [name for name in ENGINES if not (arguments.quick and name in (*OTHERS, STORED))]
    workloads = arguments.workloads or (QUICK if arguments.quick else list(WORKLOADS))
    where = machine() | {"date": time.strftime("%Y-%m-%d")}
    measured = Measurements(engines, workloads, seconds)
    try:
        with open_bench_setup() as setup:
            sources = Sources(setup=setup, nginx=arguments.nginx)
            for number in range(rounds):
                measured.round(setup, sources, number)
    except KeyboardInterrupt:
        log("interrupted; the results are those measured so far")
    found = list(measured.results(where))
    print("\n".join(result.line() for result in found) if arguments.json else page(found))
    if arguments.plot:
        arguments.plot.write_text(plot(found), "utf-8")
    return int(any(name.startswith(OURS) for name, _ in measured.missing))


if __name__ == "__main__":
    sys.exit(main())
