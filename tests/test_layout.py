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


PROVOCATIONS = {
    "calls/provoked.py": ("import os", "calls is pure: no IO, clock or randomness"),
    "store/provoked.py": ("import proxy.settings", "proxy → replay → store → calls"),
    "replay/provoked.py": ("import mitmproxy.http", "mitmproxy only in proxy.mitm"),
    "store/provoked_too.py": ("import torch", "vllm nowhere but in inference"),
    "proxy/provoked.py": ("import fastapi", "FastAPI only in the store's api files"),
}
"""A file, what it may not import, and the contract that says so."""


def test_every_import_contract_fails_when_provoked(tmp_path: Path) -> None:
    for room in ROOMS:
        _copy(ROOT / room, tmp_path / room)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for file, (line, _) in PROVOCATIONS.items():
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
    said = linted.stdout + linted.stderr
    assert linted.returncode != 0, said
    # Each for its own file, and none goes unprovoked.
    assert [name for _, name in PROVOCATIONS.values() if f"{name} BROKEN" not in linted.stdout] == [], said
    assert [file for file in PROVOCATIONS if _module(file) not in linted.stdout] == [], said
    assert " 0 kept, 5 broken" in linted.stdout, said


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def _copy(source: Path, target: Path) -> None:
    for file in source.rglob("*.py"):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
