"""What mypy is told to refuse beyond its own rules."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import dataclasses
import msgspec
from dataclasses import asdict, astuple, dataclass, fields, replace

class Base(msgspec.Struct):
    one: int

class Child(Base, frozen=True):
    two: int

@dataclass
class Plain:
    one: int

def use(struct: Child, either: Plain | Base, plain: Plain) -> None:
    replace(plain, one=2)
    asdict(plain)
    msgspec.structs.replace(struct, one=2)
    replace(struct, one=2)  # wrong
    dataclasses.replace(struct, one=2)  # wrong
    asdict(either)  # wrong
    astuple(struct)  # wrong
    fields(struct)  # wrong
    fields(Child)  # wrong
"""


def test_mypy_refuses_the_functions_of_dataclasses_for_structs(tmp_path: Path) -> None:
    (plugin,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["plugins"]
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nplugins = {ROOT / plugin}\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    line = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"program\.py:(\d+): error: (?:Base|Child) is a msgspec\.Struct", done.stdout)
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# wrong" in line]
    assert list(map(int, found)) == wrong, done.stdout
