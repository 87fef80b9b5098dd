"""Compare stock vLLM with the patch, one JSON line per engine. Run `python -m proof` in inference/, in its environment.

python -m proof --list                     list the cells
python -m proof CELL                       run one cell in this process
python -m proof --job                      run all cells that the record lacks, each in a process of its own
python -m proof --job --device gpu         run the same cells on a GPU, stock and patched in separate processes
python -m proof --cost 20 --threads 1      measure the cost of the patch, in at most 20 rounds
python -m proof --page PAGE                write the tables of the record into a page
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from proof.cells import REAL, UNEVEN, Cell, pairwise_cover, repeated_cells
from proof.table import write_tables

TIMES = 3
"""Number of runs of each repeated cell, to compare the bits of different processes."""


def cells() -> dict[str, Cell]:
    """All cells, by name."""
    found = (*pairwise_cover(), *chain(*repeated_cells()))
    return {cell.name: cell for cell in (*found, *(replace(each, threads=2) for each in found))}


KINDS = ("dense", "moe", "uneven")
THREADS = (2, 3, 4, 8)


def jobs(real: Path | None) -> list[tuple[str, int, list[str]]]:
    """The name, run number and arguments of all jobs on a CPU."""
    same, otherwise = repeated_cells()
    found = [("uneven", 1, ["--uneven", "--threads", "2"])]
    found += [(cell.name, 1, [cell.name]) for cell in pairwise_cover()]
    found += [
        (f"operations-{kind}-t{threads}", 1, ["--operations", kind, "--threads", str(threads)])
        for kind in KINDS
        for threads in THREADS
    ]
    found += [(f"uneven-t{threads}", 1, ["--uneven", "--threads", str(threads)]) for threads in THREADS[1:]]
    found += [("real", 1, ["--real", str(real)])] if real else []
    found += [(cell.name, run, [cell.name]) for run in range(1, TIMES + 1) for cell in same]
    found += [(cell.name, 1, [cell.name]) for cell in otherwise]
    return [*found, ("thousand", 1, ["--thousand", "1000"])]


def gpu_jobs(own: bool) -> list[tuple[str, int, list[str]]]:
    """The same for a GPU, with the default number of threads only, because a GPU's bits do not depend on it."""
    cells = dict.fromkeys(replace(cell, threads=2) for cell in pairwise_cover() if cell.kind != "uneven")
    kernels = "-own" if own else ""
    return [(f"gpu{kernels}-{cell.name}", 1, [cell.name, "--device", "gpu"]) for cell in cells]


def run_jobs(options: argparse.Namespace) -> None:
    """Run all jobs without a row in the record, and append each row at once: an interruption loses only running jobs."""
    from proof.runs import patch_digest

    done = {(row["cell"], row.get("run")) for row in read_record(options.record) if row["patch"] == patch_digest()}
    found = gpu_jobs(options.own) if options.device == "gpu" else jobs(options.real)
    remaining = [each for each in found if (each[0], each[1]) not in done][options.share :: options.shares]
    lock = threading.Lock()

    def run(each: tuple[str, int, list[str]]) -> None:
        name, number, words = each
        words = [*words, "--models", str(options.models)]
        for row in (
            _run_both_sides(words, options) if options.device == "gpu" else _run_process(words, options.patience)
        ):
            with lock:
                append_row(options.record, {"cell": name, "run": number} | row)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(run, remaining))


def _run_both_sides(words: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run two processes for one row, because vLLM's mode cannot be turned off within a process."""
    found: dict[str, Any] = {}
    for side in ("stock", "patched"):
        kernels = {"PLAYHEAD_KERNELS": "own"} if options.own and side == "patched" else {}
        mode = {"VLLM_BATCH_INVARIANT": "1"} if side == "patched" else {}
        rows = _run_process([*words, "--side", side], options.patience, {**kernels, **mode})
        if not rows:
            return []
        found |= rows[0]
    return [found]


def read_record(record: Path) -> list[dict[str, Any]]:
    """Read the rows of the record."""
    return [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []


def append_row(record: Path, row: Mapping[str, Any]) -> None:
    """Append a row with today's date."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "date": time.strftime("%Y-%m-%d")}) + "\n")


def _run_process(
    words: Sequence[str], patience: float, variables: Mapping[str, str] = MappingProxyType({})
) -> list[Any]:
    """Run a process and return the rows that it prints. If it fails, the next job runs it again."""
    command = [sys.executable, "-m", "proof", *words]
    try:
        result = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, text=True, timeout=patience, env={**os.environ, **variables}
        )
    except subprocess.TimeoutExpired:
        print(f"{words[0]} took more than {patience} seconds", file=sys.stderr)  # noqa: T201 # a script's output
        return []
    # vLLM writes to stdout too; rows begin with a brace.
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cell", nargs="?", choices=cells(), metavar="CELL")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--record", type=Path, default=Path(__file__).with_name("record.jsonl"), metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="PAGE")
    parser.add_argument("--real", type=Path, metavar="DIR", help="run a cell with this model as well")
    parser.add_argument("--thousand", type=int, metavar="ASKS")
    parser.add_argument("--uneven", action="store_true", help="one layer of 1,000 columns, in batches of 33 to 63")
    parser.add_argument("--operations", choices=KINDS, help="every operation at every number of rows")
    parser.add_argument(
        "--cost", type=int, metavar="ROUNDS", help="rounds at most; fewer once each interval is 10 %% wide"
    )
    parser.add_argument("--threads", type=int, default=2, help="with --cost, --uneven, --operations")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--own", action="store_true", help="with --device gpu: Playhead's kernels in place of vLLM's")
    parser.add_argument(
        "--side", choices=["stock", "patched"], help="with --device gpu: the side that this process runs"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="with --job: number of engines at once")
    parser.add_argument(
        "--share", type=int, default=0, metavar="K", help="with --job: run every N-th job, starting with the K-th"
    )
    parser.add_argument("--shares", type=int, default=1, metavar="N", help="with --job: see --share")
    parser.add_argument(
        "--patience", type=float, default=1800, metavar="S", help="with --job: time limit of each cell in seconds"
    )
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "playhead-proof-models")
    options = parser.parse_args()
    if options.list:
        print("\n".join(cells()))  # noqa: T201 # a script's output
    elif options.page:
        options.page.write_text(write_tables(options.page.read_text("utf-8"), read_record(options.record)), "utf-8")
    elif options.job:
        run_jobs(options)
    else:
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    """Run an engine in this process."""
    cell = cells()[options.cell] if options.cell else None
    # The numerical libraries read these variables when they are loaded.
    os.environ["OMP_NUM_THREADS"] = str(cell.threads if cell else options.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from proof import cost, runs
    from proof.engine import Engine

    if options.cost:
        for row in cost.measure_pairs(Engine(options.models, cost.cost_cell(options.threads)), options.cost):
            append_row(options.record, row)
    elif options.thousand:
        _print_row(runs.run_thousand(Engine(options.models, runs.THOUSAND), options.thousand))
    elif options.uneven:
        _print_row(runs.run_uneven(Engine(options.models, replace(UNEVEN, threads=options.threads))))
    elif options.operations:
        whole = Cell(kind=options.operations, context=2000, chunk=2048, threads=options.threads)
        _print_row(runs.run_operations(Engine(options.models, whole, device=options.device)))
    elif cell and options.device == "gpu":
        _print_row(runs.run_side(Engine(options.models, cell, device="gpu"), options.side or "stock"))
    elif options.real:
        _print_row(runs.run_cell(Engine(options.models, REAL, options.real)))
    elif cell:
        _print_row(runs.run_cell(Engine(options.models, cell)))


def _print_row(found: Mapping[str, Any]) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201 # a script's output


if __name__ == "__main__":
    main()
