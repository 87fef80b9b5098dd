"""The price of plain top-level package names, paid here: nobody else may own them, and the rooms keep their doors shut."""

import importlib
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("calls", "store", "replay", "proxy")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_the_one_in_this_repository(room: str) -> None:
    file = importlib.import_module(room).__file__
    assert file is not None
    assert Path(file).is_relative_to(ROOT)


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_else_claims_a_room_s_name(room: str) -> None:
    assert set(packages_distributions().get(room, ["playhead"])) == {"playhead"}
    assert room not in sys.stdlib_module_names


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("calls/provoked.py", "import os", "calls is pure: no IO, clock or randomness"),
        ("store/provoked.py", "import proxy.settings", "proxy → replay → store → calls"),
        ("replay/provoked.py", "import mitmproxy.http", "mitmproxy only in proxy.mitm"),
        ("proxy/provoked.py", "import mitmproxy.http", "mitmproxy only in proxy.mitm"),
    ],
)
def test_the_import_contracts_fail_when_provoked(file: str, line: str, broken: str, tmp_path: Path) -> None:
    for room in ROOMS:
        _copy(ROOT / room, tmp_path / room)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / file).write_text(f"{line}\n")
    linted = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode != 0
    assert f"{broken} BROKEN" in linted.stdout, linted.stdout + linted.stderr


def _copy(source: Path, target: Path) -> None:
    for file in source.rglob("*.py"):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
