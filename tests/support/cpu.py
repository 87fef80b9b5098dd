"""What tests cost: CPU seconds by module and test, those of all processes that they start included.

`pytest --cpu=FILE` appends one line for each module, from each worker. `python -m tests.support.cpu FILE` adds them up by
folder; a further `modules` or `tests` by those. The kernel counts by control group, which only root may make: wall time says
little on a machine that is busy with other work, and many processes end where nobody waits for them.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

TESTS: Final = Path(__file__).parent.parent
GROUPS: Final = Path("/sys/fs/cgroup/cpuacct")
"""Where control groups of version 1 count CPU. Those of version 2 lie one level higher."""


class CpuReport:
    """Measures one pytest process, and writes the figures of each module when the next one begins."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._group = (GROUPS if GROUPS.exists() else GROUPS.parent) / f"playhead-tests-{os.getpid()}"
        self._group.mkdir()
        (self._group / "cgroup.procs").write_text(str(os.getpid()))
        self._module = "(collection)"
        self._tests: list[tuple[str, float]] = []
        self._written = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test with its fixtures."""
        module = item.path.relative_to(TESTS).as_posix()
        if module != self._module:
            self._write()
            self._module = module
        before = self._read_cpu()
        yield
        self._tests.append((item.nodeid.partition("::")[2], round(self._read_cpu() - before, 3)))

    def pytest_unconfigure(self) -> None:
        """Write the last module, and leave the group."""
        self._write()
        # What workers share may end just now, or start something.
        for _ in range(100):
            with suppress(OSError):
                for process in (self._group / "cgroup.procs").read_text().split():
                    (self._group.parent / "cgroup.procs").write_text(process)
                self._group.rmdir()
                return
            time.sleep(0.05)

    def _write(self) -> None:
        used = self._read_cpu()
        line = json.dumps({"module": self._module, "cpu": round(used - self._written, 3), "tests": self._tests})
        self._written, self._tests = used, []
        with self._file.open("a") as out:
            out.write(line + "\n")

    def _read_cpu(self) -> float:
        """Return the CPU seconds of this process and of all processes that it has started since."""
        if (nanoseconds := self._group / "cpuacct.usage").exists():
            return int(nanoseconds.read_text()) / 1e9
        return int((self._group / "cpu.stat").read_text().split()[1]) / 1e6


def print_table(lines: list[dict[str, Any]], kind: str, least: float) -> None:
    """Print folders, modules or tests by their CPU."""
    cost: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for line in lines:
        module = line["module"]
        parts = [(module, line["cpu"], len(line["tests"]))]
        if kind == "folders":
            parts = [(str(Path(module).parent if "/" in module else module), line["cpu"], len(line["tests"]))]
        elif kind == "tests":
            parts = [(f"{module}::{name}", seconds, 1) for name, seconds in line["tests"]]
        for name, seconds, number in parts:
            cost[name] += seconds
            count[name] += number
    for name, seconds in sorted(cost.items(), key=lambda one: -one[1]):
        if seconds >= least:
            print(f"{seconds:8.1f} s {count[name]:6} tests  {name}")
    print(f"{sum(cost.values()):8.1f} s {sum(count.values()):6} tests")


if __name__ == "__main__":
    rows = [json.loads(row) for row in Path(sys.argv[1]).read_text().splitlines()]
    print_table(rows, sys.argv[2] if len(sys.argv) > 2 else "folders", float(sys.argv[3]) if len(sys.argv) > 3 else 0.5)
