"""`python -m proof`, run in inference/ by the environment's Python: stock vLLM beside ours, one JSON line for each engine.

python -m proof --list                     the cells
python -m proof CELL                       one of them, here and now
python -m proof --job                      all of them, each in a process of its own; what the record has is not run again
python -m proof --job --device gpu         the same cells on a GPU, stock and ours in a process each
python -m proof --cost 20 --threads 1      what the patch costs, in so many rounds
python -m proof --page PAGE                 write the tables of the record into it
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

from proof.cells import REAL, UNEVEN, Cell, again, cover
from proof.table import written

TIMES = 3
"""How often a cell is run as it is, to compare the bits of its processes."""


def cells() -> dict[str, Cell]:
    """By name."""
    found = (*cover(), *chain(*again()))
    return {cell.name: cell for cell in (*found, *(replace(each, threads=2) for each in found))}


KINDS = ("dense", "moe", "uneven")
THREADS = (2, 3, 4, 8)


def jobs(real: Path | None) -> list[tuple[str, int, list[str]]]:
    """Name, run and words of everything there is to do on a CPU."""
    same, otherwise = again()
    found = [("uneven", 1, ["--uneven", "--threads", "2"])]
    found += [(cell.name, 1, [cell.name]) for cell in cover()]
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
    """Likewise on a GPU: the same cells with the default number of threads, which a GPU's bits do not depend on."""
    cells = dict.fromkeys(replace(cell, threads=2) for cell in cover() if cell.kind != "uneven")
    kernels = "-own" if own else ""
    return [(f"gpu{kernels}-{cell.name}", 1, [cell.name, "--device", "gpu"]) for cell in cells]


def job(wanted: argparse.Namespace) -> None:
    """Run what the record has no row of, and add a row for each as it comes: an interruption loses those that run."""
    from proof.runs import patch

    done = {(row["cell"], row.get("run")) for row in read(wanted.record) if row["patch"] == patch()}
    found = gpu_jobs(wanted.own) if wanted.device == "gpu" else jobs(wanted.real)
    left = [each for each in found if (each[0], each[1]) not in done][wanted.share :: wanted.shares]
    lock = threading.Lock()

    def run(each: tuple[str, int, list[str]]) -> None:
        name, number, words = each
        words = [*words, "--models", str(wanted.models)]
        for row in _both_sides(words, wanted) if wanted.device == "gpu" else _ran(words, wanted.patience):
            with lock:
                append(wanted.record, {"cell": name, "run": number} | row)

    with ThreadPoolExecutor(wanted.at_once) as pool:
        list(pool.map(run, left))


def _both_sides(words: Sequence[str], wanted: argparse.Namespace) -> list[dict[str, Any]]:
    """A row of two processes: vLLM's mode cannot be turned off in one."""
    found: dict[str, Any] = {}
    for side in ("stock", "patched"):
        kernels = {"PLAYHEAD_KERNELS": "own"} if wanted.own and side == "patched" else {}
        mode = {"VLLM_BATCH_INVARIANT": "1"} if side == "patched" else {}
        rows = _ran([*words, "--side", side], wanted.patience, {**kernels, **mode})
        if not rows:
            return []
        found |= rows[0]
    return [found]


def read(record: Path) -> list[dict[str, Any]]:
    """Its rows."""
    return [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []


def append(record: Path, row: Mapping[str, Any]) -> None:
    """One more, with its day."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "date": time.strftime("%Y-%m-%d")}) + "\n")


def _ran(words: Sequence[str], patience: float, variables: Mapping[str, str] = MappingProxyType({})) -> list[Any]:
    """The rows that a process of its own prints. One that fails says so, and is run again by the next job."""
    command = [sys.executable, "-m", "proof", *words]
    try:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, text=True, timeout=patience, env={**os.environ, **variables}
        )
    except subprocess.TimeoutExpired:
        print(f"{words[0]} took more than {patience} seconds", file=sys.stderr)  # noqa: T201 # a script's output
        return []
    # vLLM writes to stdout too: a line of ours is one that begins with a brace.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    """Each cell in a process of its own, so that an engine leaves no memory behind."""
    parser = argparse.ArgumentParser(
        prog="python -m proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cell", nargs="?", choices=cells(), metavar="CELL")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--record", type=Path, default=Path(__file__).with_name("record.jsonl"), metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="PAGE")
    parser.add_argument("--real", type=Path, metavar="DIR", help="a model of yours, as a further cell")
    parser.add_argument("--thousand", type=int, metavar="ASKS")
    parser.add_argument("--uneven", action="store_true", help="one layer of 1,000 columns, in batches of 33 to 63")
    parser.add_argument("--operations", choices=KINDS, help="every operation at every number of rows")
    parser.add_argument(
        "--cost", type=int, metavar="ROUNDS", help="rounds at most; fewer once each interval is 10 %% wide"
    )
    parser.add_argument("--threads", type=int, default=2, help="with --cost, --uneven, --operations")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--own", action="store_true", help="with --device gpu: our kernels in place of vLLM's")
    parser.add_argument(
        "--side", choices=["stock", "patched"], help="with --device gpu: which of the two this process is"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="with --job: engines at once")
    parser.add_argument("--share", type=int, default=0, metavar="K", help="with --job: every so many of the list,")
    parser.add_argument("--shares", type=int, default=1, metavar="N", help="from the K-th on")
    parser.add_argument("--patience", type=float, default=1800, metavar="S", help="with --job: for each cell")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "playhead-proof-models")
    wanted = parser.parse_args()
    if wanted.list:
        print("\n".join(cells()))  # noqa: T201 # a script's output
    elif wanted.page:
        wanted.page.write_text(written(wanted.page.read_text("utf-8"), read(wanted.record)), "utf-8")
    elif wanted.job:
        job(wanted)
    else:
        _measured(wanted)


def _measured(wanted: argparse.Namespace) -> None:
    """With an engine in this process."""
    cell = cells()[wanted.cell] if wanted.cell else None
    # Read by the libraries that compute, when they are loaded.
    os.environ["OMP_NUM_THREADS"] = str(cell.threads if cell else wanted.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from proof import cost, runs
    from proof.engine import Engine

    if wanted.cost:
        for row in cost.pairs(Engine(wanted.models, cost.cell(wanted.threads)), wanted.cost):
            append(wanted.record, row)
    elif wanted.thousand:
        _say(runs.thousand(Engine(wanted.models, runs.THOUSAND), wanted.thousand))
    elif wanted.uneven:
        _say(runs.uneven(Engine(wanted.models, replace(UNEVEN, threads=wanted.threads))))
    elif wanted.operations:
        whole = Cell(kind=wanted.operations, context=2000, chunk=2048, threads=wanted.threads)
        _say(runs.operations(Engine(wanted.models, whole, device=wanted.device)))
    elif cell and wanted.device == "gpu":
        _say(runs.half(Engine(wanted.models, cell, device="gpu"), wanted.side or "stock"))
    elif wanted.real:
        _say(runs.proved(Engine(wanted.models, REAL, wanted.real)))
    elif cell:
        _say(runs.proved(Engine(wanted.models, cell)))


def _say(found: Mapping[str, Any]) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201 # a script's output


if __name__ == "__main__":
    main()
