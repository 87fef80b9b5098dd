"""Measure the layout, the names and the journeys through the code: `python -m bench.structure [--checkout DIR]`.

A journey is one call that goes through running processes. Its files are counted in three ways: those that a reader
opens to follow its data (the path in ARCHITECTURE.md, checked by the trace, see `bench.journey_tables`); those that
handle its data; and those in which a function runs for it, without what runs in the absence of calls. `--checkout`
measures another checkout, with this script and that checkout's `.venv`. Prints tables.
"""

import argparse
import ast
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.journey_tables import ROOT, TRACED, judge_tables, path_lengths
from bench.journeys import follow_journeys
from tests.support.names import is_bare_participle

PACKAGES: Final = ("calls", "store", "replay", "proxy")


def definitions(root: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield every function and class of the packages with its file."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield str(path.relative_to(root)), node


def layout(root: Path) -> Mapping[str, str]:
    """Return the figures of names and folders."""
    siblings = Counter(
        str(path.parent.relative_to(root)) for package in PACKAGES for path in (root / package).rglob("*.py")
    )
    functions: list[str] = []
    classes: defaultdict[str, set[str]] = defaultdict(set)
    for file, node in definitions(root):
        if isinstance(node, ast.ClassDef):
            classes[node.name].add(file)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            functions.append(node.name.strip("_"))
    words = sum("_" not in name for name in functions)
    participles = sum(is_bare_participle(name) for name in functions)
    shared = sorted((name for name, files in classes.items() if len(files) > 1), key=lambda name: -len(classes[name]))
    often = Counter(functions).most_common(4)
    return {
        "files in the largest folders": ", ".join(f"{folder} {count}" for folder, count in siblings.most_common(4)),
        "one-word function names": f"{words / len(functions):.1%} of {len(functions)}",
        "functions named by a bare participle": f"{participles / len(functions):.1%} ({participles})",
        "median length of a function's name": str(statistics.median(map(len, functions))),
        "class names with several definitions": ", ".join(f"{name} {len(classes[name])}" for name in shared[:6])
        or "none",
        "names defined most often": ", ".join(f"{name} {count}" for name, count in often),
        "files": str(sum(siblings.values())),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--layout-only", action="store_true", help="start nothing")
    parser.add_argument("--write", action="store_true", help=f"write the flows of data to {TRACED.name}")
    options = parser.parse_args(words)
    root = options.checkout.resolve()
    for trait, value in layout(root).items():
        print(f"{trait:38} {value}")
    if options.layout_only:
        return
    print(f"\n{'journey':40} {'ran: files':>10} {'lines':>8} {'functions':>10} {'handled data: files':>20}")
    flows = {}
    for journey in follow_journeys(root):
        print(journey.row(root), flush=True)
        flows[journey.title] = journey.trace.data_flows()
    if options.write:
        TRACED.write_text(json.dumps(flows, indent=1) + "\n")
    print(f"\n{'path in ARCHITECTURE.md':40} {'files':>10} {'goal':>8}")
    for title, (count, most) in path_lengths(root).items():
        print(f"{title:40} {count:10} {most:8}")
    if faults := [*judge_tables(root, flows)]:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
