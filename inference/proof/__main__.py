"""`python -m proof`, run in inference/ by the environment's Python: stock vLLM beside ours, one JSON line for each engine.

python -m proof --list                     the cells
python -m proof CELL                       one of them, here and now
python -m proof --job                      all of them, each in a process of its own; what the record has is not run again
python -m proof --cost 20 --threads 1      what the patch costs, in so many rounds
python -m proof --page PAGE                 write the tables of the record into it
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from proof.cells import REAL, Cell, again, cover
from proof.table import written

TIMES = 3
"""How often a cell is run as it is, to compare the bits of its processes."""


def cells() -> dict[str, Cell]:
    """By name."""
    return {cell.name: cell for cell in (*cover(), *chain(*again()))}


def jobs(real: Path | None) -> list[tuple[str, int, list[str]]]:
    """Name, run and words of everything there is to do."""
    same, otherwise = again()
    found = [(cell.name, 1, [cell.name]) for cell in cover()]
    found += [("real", 1, ["--real", str(real)])] if real else []
    found += [(cell.name, run, [cell.name]) for run in range(1, TIMES + 1) for cell in same]
    found += [(cell.name, 1, [cell.name]) for cell in otherwise]
    return [*found, ("thousand", 1, ["--thousand", "1000"])]


def job(wanted: argparse.Namespace) -> None:
    """Run what the record has no row of, and add a row for each as it comes: an interruption loses the one that runs."""
    from proof.runs import patch

    done = {(row["cell"], row.get("run")) for row in read(wanted.record) if row["patch"] == patch()}
    for name, run, words in jobs(wanted.real):
        if (name, run) not in done:
            for row in _ran([*words, "--models", str(wanted.models)], wanted.patience):
                append(wanted.record, {"cell": name, "run": run} | row)


def read(record: Path) -> list[dict[str, Any]]:
    """Its rows."""
    return [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []


def append(record: Path, row: Mapping[str, Any]) -> None:
    """One more, with its day."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "date": time.strftime("%Y-%m-%d")}) + "\n")


def _ran(words: Sequence[str], patience: float) -> list[dict[str, Any]]:
    """The rows that a process of its own prints. One that fails says so, and is run again by the next job."""
    command = [sys.executable, "-m", "proof", *words]
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=patience)
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
    parser.add_argument("--cost", type=int, metavar="ROUNDS")
    parser.add_argument("--threads", type=int, default=2, help="with --cost")
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
    from proof import cost, runs
    from proof.engine import Engine

    if wanted.cost:
        for row in cost.pairs(Engine(wanted.models, cost.cell(wanted.threads)), wanted.cost):
            append(wanted.record, row)
    elif wanted.thousand:
        _say(runs.thousand(Engine(wanted.models, runs.THOUSAND), wanted.thousand))
    elif wanted.real:
        _say(runs.proved(Engine(wanted.models, REAL, wanted.real)))
    elif cell:
        _say(runs.proved(Engine(wanted.models, cell)))


def _say(found: Mapping[str, Any]) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201 # a script's output


if __name__ == "__main__":
    main()
