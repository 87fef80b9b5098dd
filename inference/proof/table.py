"""The record of what was run, as the tables of docs/batch-invariance.md. Pure: a row that is not there is not shown as run."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from proof.cells import Cell, again, cover
from proof.spread import summary

Row = Mapping[str, Any]

BEGIN, END = "<!-- proof: written by python -m proof --page -->\n", "<!-- proof: end -->\n"


def written(page: str, rows: Sequence[Row]) -> str:
    """The page with the tables of this record between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tables(rows) + END + after


def tables(rows: Sequence[Row]) -> str:
    """All of them, each with what it is of."""
    gpu = [row for row in rows if row["cell"].startswith("gpu")]
    cpu = [row for row in rows if not row["cell"].startswith("gpu")]
    proved = [row for row in cpu if "patched" in row and row["cell"] != "cost"]
    swept = [row for row in cpu if row["cell"].startswith("operations")]
    cost = [row for row in cpu if row["cell"] == "cost"]
    parts = [_machine(cpu), _summed(proved), _cells(proved), _processes(proved), _operations(swept), _cost(cost)]
    parts += [_machine(gpu), _cells(gpu)]
    return "\n".join(part for part in parts if part)


def _machine(rows: Sequence[Row]) -> str:
    """Versions and machines, as the rows have them: more than one where there was more than one."""
    said = {
        f"vLLM {row['vllm']}, torch {row['torch']}, {row.get('dtype', 'float32')}, {row['device']} with {row['isa']},"
        f" patch `{row['patch']}`"
        for row in rows
    }
    days = sorted({row["date"] for row in rows})
    span = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    return f"{'; '.join(sorted(said))}; {span}.\n" if rows else ""


def _summed(rows: Sequence[Row]) -> str:
    covered = {cell.name for cell in cover()}
    run = {row["cell"] for row in rows}
    one = sum(row["patched"]["distinct"] == 1 for row in rows)
    varied = sum(row["stock"]["distinct"] > 1 for row in rows)
    return (
        f"{len(covered & run)} of the {len(covered)} cells of the pairwise cover were run, {len(rows)} engines in all: "
        f"ours gave 1 distinct result in {one} of them, stock more than 1 in {varied}.\n"
    )


NAMES: Final = {"thousand": "dense, 1,000 identical prompts", "real": "SmolLM2-135M, real weights"}


HEAD: Final = (
    "model, heads to a KV head",
    "context",
    "prefill",
    "tokens from the prefix cache",
    "preemptions",
    "at once",
    "handed out",
    "sampling",
    "threads",
    "stock: distinct",
    "ours: distinct",
)


def _cells(rows: Sequence[Row]) -> str:
    """Every cell once, in the order of the list, then the ones that are not of the cover."""
    order = {name: at for at, name in enumerate([*(cell.name for cell in (*cover(), *chain(*again()))), *NAMES])}
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["cell"], row)
    ordered = sorted(first.values(), key=lambda row: order.get(row["cell"], len(order)))
    return _table(HEAD, (_cell(row) for row in ordered))


def _cell(row: Row) -> tuple[str, ...]:
    stock, ours = row["stock"], row["patched"]
    return (
        f"{_name(row)}, {row['ratio']}",
        f"{row['context']:,}",
        f"chunks of {row['chunk']:,}" if row["chunked"] else "whole",
        f"{ours.get('cached_tokens', 0):,}" if row["prefix"] else "off",
        f"{stock['preemptions']}, {ours['preemptions']}" if row["preempted"] else "-",
        {"thousand": "56"}.get(row["cell"], "33 to 63" if row["cell"].startswith("uneven-t") else str(row["most"])),
        "by token" if row["streamed"] else "at the end",
        row["sampling"],
        str(row["threads"]),
        f"{stock['distinct']} of {stock['answers']:,}",
        f"**{ours['distinct']}** of {ours['answers']:,}",
    )


def _name(row: Row) -> str:
    if row["cell"] == "uneven" or row["cell"].startswith("uneven-t"):
        return "uneven, identical prompts"
    return NAMES.get(row["cell"]) or str(row["kind"])


def _operations(rows: Sequence[Row]) -> str:
    """What was executed, and at how many numbers of rows it was run again."""
    found = [
        (
            row["kind"],
            str(row["threads"]),
            str(row["operations"]),
            str(row["shapes"]),
            ", ".join(str(row[kind]) for kind in ("moved", "exact", "engine")),
            str(row["swept"]),
            "none" if not row["differing"] else "; ".join(row["differing"]),
            "none" if not row["uncovered"] else "; ".join(row["uncovered"]),
        )
        for row in rows
    ]
    head = (
        "model",
        "threads",
        "operations",
        "with shapes",
        "moved, exact, by the engine",
        "swept",
        "differing",
        "no verdict",
    )
    return _table(head, found)


def _processes(rows: Sequence[Row]) -> str:
    """The bits of the first answer, which was alone, by process: ours, and stock's."""
    found = []
    for cell in chain(*again()):
        mine = [row for row in rows if row["cell"] == cell.name]
        digests = [sorted({row[side]["digest"][:8] for row in mine}) for side in ("patched", "stock")]
        if mine:
            found.append(
                (cell.kind, cell.sampling, _said(cell), str(len(mine)), *(", ".join(each) for each in digests))
            )
    return _table(("model", "sampling", "set otherwise", "processes", "ours: bits", "stock, alone: bits"), found)


def _said(cell: Cell) -> str:
    """What is not as in the first."""
    base = Cell(kind=cell.kind, sampling=cell.sampling, most=4)
    names = ("threads", "chunked", "prefix", "preempted", "most")
    said = [f"{name}: {getattr(cell, name)}" for name in names if getattr(cell, name) != getattr(base, name)]
    return ", ".join(said) or "-"


def _cost(rows: Sequence[Row]) -> str:
    """Ours over stock: medians with their 95 % intervals."""
    found = [
        (
            each["work"],
            str(each["threads"]),
            str(each["pairs"]),
            _ratio(each["cpu"]),
            str(each["quiet"]),
            _ratio(each["wall"]),
        )
        for each in summary(rows)
    ]
    return _table(
        ("work", "threads", "pairs", "CPU seconds, ours / stock", "quiet pairs", "wall clock of these"), found
    )


def _ratio(spread: Sequence[float] | None) -> str:
    return f"**{spread[1]:.2f}** [{spread[0]:.2f}, {spread[2]:.2f}]" if spread else "too few"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = list(rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines)) if lines else ""
