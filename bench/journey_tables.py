"""Check the tables of ARCHITECTURE.md against the data flow of traced calls.

A table names, in its second column, the files on the path of a call's data, in order, and in its third column those
that the path asks. A file is on the path if it hands data on: it gets data from one file and gives it to another, or it
reads the data from, or writes it to, a socket, the spool or Postgres, or it makes the next form of the data (redacted
bytes, exchange, call, row). A file that is asked is called with data, and only its result goes back to the file that
called it, so a reader opens it only to learn how. The trace is compared with the table: each file that handles data
must be in one of the two columns, and only a file on the path may call one that is on the path.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TRACED: Final = ROOT / "bench" / "journeys.json"
"""The data flow of each journey when it was last traced: for each file that handles data, its callers that handle data,
too.
"""

_NAMED: Final = re.compile(r"`((?:calls|store|replay|proxy|tests)/[\w./-]*)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A journey with a table in ARCHITECTURE.md."""

    title: str
    """The heading of its section."""

    most: int
    """The number of files that a reader may have to open."""

    continued_by: tuple[str, ...] = ()
    """The journeys that continue this one. The files in their tables need not be named again."""

    is_traced: bool = True


GOALS: Final = (
    Goal(title="A recorded stream, from socket to row", most=20),
    Goal(title="A replayed call", most=14),
    Goal(title="A fork", most=16, continued_by=("A recorded stream, from socket to row", "A replayed call")),
    Goal(title="A new dialect", most=3, is_traced=False),
)


@dataclass(frozen=True, slots=True)
class Table:
    """The files that a table names."""

    path: tuple[str, ...]
    asked: tuple[str, ...]
    """Files and folders."""

    def names(self, file: str) -> bool:
        """Whether a file is in one of the two columns, alone or with its folder."""
        return file in self.path or any(file == one or file.startswith(f"{one}/") for one in self.asked)


type Flows = Mapping[str, Sequence[str]]


def read_table(page: str, title: str) -> Table:
    """Read the table of a section."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    columns = [[name.rstrip("/") for row in rows for name in _NAMED.findall(row[at])] for at in (1, 2)]
    return Table(tuple(columns[0]), tuple(columns[1]))


def find_faults(table: Table, goal: Goal, flows: Flows, continued: Sequence[Table] = ()) -> Iterator[str]:
    """Yield the faults of a table. `continued` are the tables of the journeys that continue this one."""
    if not 0 < len(table.path) <= goal.most:
        yield f"{goal.title}: its path has {len(table.path)} files; 1 to {goal.most} are allowed"
    for name in sorted({name for name in table.path if table.path.count(name) > 1}):
        yield f"{goal.title}: {name} is on the path twice"
    path = {name for one in (table, *continued) for name in one.path}
    for file, callers in flows.items():
        if not any(one.names(file) for one in (table, *continued)):
            yield f"{goal.title}: {file} handles the data of the call: name it in the table, or do without it"
        if file in table.path:
            for caller in callers:
                if caller not in path:
                    yield f"{goal.title}: {caller} hands data to {file}, which is on the path: it is on the path, too"
    for at, file in enumerate(table.path if goal.is_traced else ()):
        if file not in flows:
            yield f"{goal.title}: {file} handles no data of the call: take it from the path"
        elif at and not is_reached(file, table.path[:at], flows):
            yield f"{goal.title}: no data passes between {file} and a file before it on the path: a file is missing"


def is_reached(file: str, earlier: Sequence[str], flows: Flows) -> bool:
    """Whether data passes between a file and an earlier one, or no other file calls it: an event loop or a thread does."""
    return not flows[file] or any(one in flows[file] or file in flows.get(one, ()) for one in earlier)


def read_flows() -> Mapping[str, Flows]:
    """Return the data flow of each journey when it was last traced."""
    flows: Mapping[str, Flows] = json.loads(TRACED.read_text())
    return flows


def judge_tables(root: Path, traced: Mapping[str, Flows]) -> Iterator[str]:
    """Yield the faults of all tables of a checkout."""
    page = (root / "ARCHITECTURE.md").read_text()
    for goal in GOALS:
        table = read_table(page, goal.title)
        continued = [read_table(page, title) for title in goal.continued_by]
        yield from find_faults(table, goal, traced[goal.title] if goal.is_traced else {}, continued)


def path_lengths(root: Path) -> Mapping[str, tuple[int, int]]:
    """Return the number of files on the path of each journey, and the number allowed."""
    page = (root / "ARCHITECTURE.md").read_text()
    return {goal.title: (len(read_table(page, goal.title).path), goal.most) for goal in GOALS}
