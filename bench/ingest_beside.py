"""Compare the cost of storing a call between checkouts: `python -m bench.ingest_beside CHECKOUT...`

Further options are `[--rounds N] [--calls N] [--workloads agent] [--full DIR]`. Each checkout, this one last, has a
store server and a Postgres of its own, and all run at once; they get the same spools in turns. With `--full`, this
checkout has another store server over the full tables that `bench.scale --data DIR` made; it adds to them. Another
checkout needs no environment: its modules run with this interpreter.

Prints the CPU of a store server and its Postgres for a call, and the ratios: *drained* until the spool is empty,
*followed* until the consumers for sums, words and the watch of models have processed everything, too. A ratio is that
of the sums over all rounds, with its range over single rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.figures import Spread, machine, print_json
from bench.wire import MeasurementFailed

HERE: Final = Path(__file__).resolve().parent.parent
MEASURE: Final = Path(__file__).resolve().parent / "ingest_turns.py"


class Turns:
    """A store server of a checkout, with empty tables or those of a directory."""

    def __init__(self, checkout: Path, full: Path | None = None) -> None:
        self.name = checkout.name if full is None else "full tables"
        # Runs that the tables do not have yet.
        self._first = 0 if full is None else int(time.time())
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [sys.executable, "-P", str(MEASURE), *([] if full is None else [str(full)])]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=checkout, env=environment, text=True)

    def measure(self, workload: str, number: int, calls: int) -> dict[str, Any]:
        """Have a spool drained, and return the microseconds of CPU of a call."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([workload, self._first + number, calls]) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise MeasurementFailed(f"the checkout ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Stop the store server; its temporary directory is deleted."""
        self._process.communicate(timeout=60)


def compare(
    checkouts: Sequence[Path], workloads: Sequence[str], rounds: int, calls: int, full: Path | None
) -> list[dict[str, Any]]:
    """Measure all checkouts in turns. The first round of each workload warms up."""
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        turns = []
        for checkout, place in [*([(HERE, full)] if full else []), *((one, None) for one in checkouts)]:
            turns.append(Turns(checkout, place))
            stack.callback(turns[-1].close)
        for number in range(rounds + 1):
            for workload in workloads:
                order = range(len(turns)) if number % 2 else reversed(range(len(turns)))
                for which in order:
                    found = turns[which].measure(workload, number, calls if number else 200)
                    if number:
                        row = {"checkout": turns[which].name, "workload": workload, "round": number, **found}
                        rows.append(row)
                        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def report(rows: Sequence[dict[str, Any]], workloads: Sequence[str]) -> list[dict[str, Any]]:
    """Return the figures of each store server, and the ratio of the last one to it."""
    names = sorted({row["checkout"]: None for row in rows}, key=HERE.name.__eq__)
    figures = []
    for workload in workloads:
        for figure in ("drained_us", "followed_us"):
            by_name = {
                name: [row[figure] for row in rows if (row["checkout"], row["workload"]) == (name, workload)]
                for name in names
            }
            for name, values in by_name.items():
                ratios = [now / then for now, then in zip(by_name[names[-1]], values, strict=True)]
                figures.append(
                    {
                        "workload": workload,
                        "figure": figure,
                        "checkout": name,
                        "us": Spread.of(values),
                        "ratio_of_sums": sum(by_name[names[-1]]) / sum(values),
                        "ratio": Spread.of(ratios),
                    }
                )
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest_beside", description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--calls", type=int, default=600, help="of each workload in each round")
    parser.add_argument("--workloads", nargs="+", default=["small", "talk", "agent"])
    parser.add_argument(
        "--full", type=Path, metavar="DIR", help="a directory with full tables, from `bench.scale --data`"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    checkouts = [*(one.resolve() for one in options.checkouts), HERE]
    began = machine()
    full = options.full and options.full.resolve()
    found = report(compare(checkouts, options.workloads, options.rounds, options.calls, full), options.workloads)
    if options.json:
        print_json({"machine": began, "found": found})
        return
    print(began)
    for one in found:
        ours = f"{one['ratio_of_sums']:.3f}", f"{one['ratio']:.3f}"
        print(
            f"{one['workload']:6} {one['figure']:12} {one['checkout']:12} {one['us']:>28.0f} us   this/it {ours[0]} {ours[1]}"
        )


if __name__ == "__main__":
    main()
