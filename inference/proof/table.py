"""Format the record as the tables of docs/batch-invariance.md. Pure: only rows of the record are shown as run."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from proof.cells import Cell, pairwise_cover, repeated_cells
from proof.spread import summary

Row = Mapping[str, Any]

BEGIN, END = "<!-- proof: written by python -m proof --page -->\n", "<!-- proof: end -->\n"


def write_tables(page: str, rows: Sequence[Row]) -> str:
    """Replace the tables between the markers of a page."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tables(rows) + END + after


def tables(rows: Sequence[Row]) -> str:
    """All tables of the record."""
    gpu = [row for row in rows if row["cell"].startswith("gpu")]
    cpu = [row for row in rows if not row["cell"].startswith("gpu")]
    proved = [row for row in cpu if "patched" in row and row["cell"] != "cost"]
    swept = [row for row in cpu if row["cell"].startswith("operations")]
    cost = [row for row in cpu if row["cell"] == "cost"]
    parts = [
        _machine_line(cpu),
        _summary_line(proved),
        _cells_table(proved),
        _processes_table(proved),
        _operations_table(swept),
        _cost_table(cost),
    ]
    parts += [_machine_line(gpu), _cells_table(gpu)]
    return "\n".join(part for part in parts if part)


def _machine_line(rows: Sequence[Row]) -> str:
    """The versions, machines and dates of the rows."""
    machines = {
        f"vLLM {row['vllm']}, torch {row['torch']}, {row.get('dtype', 'float32')}, {row['device']} with {row['isa']},"
        f" patch `{row['patch']}`"
        for row in rows
    }
    days = sorted({row["date"] for row in rows})
    span = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    return f"{'; '.join(sorted(machines))}; {span}.\n" if rows else ""


def _summary_line(rows: Sequence[Row]) -> str:
    covered = {cell.name for cell in pairwise_cover()}
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


def _cells_table(rows: Sequence[Row]) -> str:
    """One line per cell, in the order of the list, then the cells that are not in the cover."""
    order = {
        name: at
        for at, name in enumerate([*(cell.name for cell in (*pairwise_cover(), *chain(*repeated_cells()))), *NAMES])
    }
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["cell"], row)
    ordered = sorted(first.values(), key=lambda row: order.get(row["cell"], len(order)))
    return _markdown_table(HEAD, (_cell_columns(row) for row in ordered))


def _cell_columns(row: Row) -> tuple[str, ...]:
    stock, ours = row["stock"], row["patched"]
    return (
        f"{_model_name(row)}, {row['ratio']}",
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


def _model_name(row: Row) -> str:
    if row["cell"] == "uneven" or row["cell"].startswith("uneven-t"):
        return "uneven, identical prompts"
    return NAMES.get(row["cell"]) or str(row["kind"])


def _operations_table(rows: Sequence[Row]) -> str:
    """The executed operations, by how they were checked."""
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
    return _markdown_table(head, found)


def _processes_table(rows: Sequence[Row]) -> str:
    """The digests of the first answer, which was computed alone, in each process."""
    found = []
    for cell in chain(*repeated_cells()):
        mine = [row for row in rows if row["cell"] == cell.name]
        digests = [sorted({row[side]["digest"][:8] for row in mine}) for side in ("patched", "stock")]
        if mine:
            found.append(
                (
                    cell.kind,
                    cell.sampling,
                    _changed_settings(cell),
                    str(len(mine)),
                    *(", ".join(each) for each in digests),
                )
            )
    return _markdown_table(
        ("model", "sampling", "set otherwise", "processes", "ours: bits", "stock, alone: bits"), found
    )


def _changed_settings(cell: Cell) -> str:
    """The settings that differ from those of the first cell."""
    base = Cell(kind=cell.kind, sampling=cell.sampling, most=4)
    names = ("threads", "chunked", "prefix", "preempted", "most")
    changes = [f"{name}: {getattr(cell, name)}" for name in names if getattr(cell, name) != getattr(base, name)]
    return ", ".join(changes) or "-"


def _cost_table(rows: Sequence[Row]) -> str:
    """The cost ratios of patched to stock: medians with their 95 % intervals."""
    found = [
        (
            each["work"],
            str(each["threads"]),
            str(each["pairs"]),
            _format_ratio(each["cpu"]),
            str(each["quiet"]),
            _format_ratio(each["wall"]),
        )
        for each in summary(rows)
    ]
    return _markdown_table(
        ("work", "threads", "pairs", "CPU seconds, ours / stock", "quiet pairs", "wall clock of these"), found
    )


def _format_ratio(spread: Sequence[float] | None) -> str:
    return f"**{spread[1]:.2f}** [{spread[0]:.2f}, {spread[2]:.2f}]" if spread else "too few"


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = list(rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines)) if lines else ""
