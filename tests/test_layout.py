"""The packages: that their names are ours, what each may import, how they are laid out, and how things are named."""

import ast
import gc
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from bench.journey_tables import Goal, Table, find_faults, judge_tables, read_flows
from tests.support.names import is_bare_participle, variables_with_participles

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("calls", "store", "replay", "proxy")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_the_one_in_this_repository(package: str) -> None:
    file = importlib.import_module(package).__file__
    assert file is not None
    assert Path(file).is_relative_to(ROOT)


@pytest.mark.parametrize("package", PACKAGES)
def test_nobody_else_claims_a_package_s_name(package: str) -> None:
    assert set(packages_distributions().get(package, ["playhead"])) == {"playhead"}
    assert package not in sys.stdlib_module_names


PROVOCATIONS = {
    "calls/provoked.py": ("import os", "calls is pure: no IO, clock or randomness"),
    "store/provoked.py": ("import proxy.settings", "proxy → replay → store → calls"),
    "replay/provoked.py": ("import mitmproxy.http", "mitmproxy only in proxy.mitm"),
    "store/provoked_too.py": ("import torch", "vllm nowhere but in inference"),
    "proxy/provoked.py": ("import fastapi", "FastAPI only in the store's api files"),
    "calls/codec/provoked.py": (
        "import calls.keys.key",
        "calls.codec and calls.framing read bytes, and know no meaning",
    ),
    "calls/dialects/provoked.py": ("import calls.keys.key", "calls.dialects know no keys and no redaction"),
    "calls/keys/provoked.py": ("import calls.dialects", "calls.keys know no dialects and no redaction"),
    "calls/redaction/provoked.py": ("import calls.dialects", "calls.redaction knows no dialects"),
    "store/database/provoked.py": (
        "import store.query.runs",
        "store.spool and store.database know nothing above them",
    ),
    "store/bundle/provoked.py": (
        "import store.query.runs",
        "store.bundle and store.foreign know no ingest, queries or API",
    ),
    "store/feed/provoked.py": ("import store.query.runs", "store.feed and store.access know only the database"),
    "store/page/provoked.py": ("import store.query.runs", "store.page knows no database, queries or API"),
    "store/query/provoked.py": ("import store.api.app", "store.query and store.diff know no API"),
    "replay/misses/provoked.py": ("import replay.forks.fork", "replay.reframing and replay.misses stand alone"),
    "proxy/wire/provoked.py": ("import proxy.lane.lane", "proxy.wire knows neither engine"),
    "proxy/lane/provoked.py": (
        "import proxy.worker.process",
        "the engines know no worker, and only the lane hands over to mitmproxy",
    ),
    "proxy/mitm/provoked.py": ("import proxy.lane.lane", "the mitmproxy engine knows no lane"),
    "proxy/terminal/provoked.py": ("import proxy.cli", "nothing imports the command line"),
}
"""A file, what it may not import, and the contract that says so."""


def test_every_import_contract_fails_when_provoked(tmp_path: Path) -> None:
    for package in PACKAGES:
        _copy(ROOT / package, tmp_path / package)
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
    assert f" 0 kept, {len(PROVOCATIONS)} broken" in linted.stdout, said


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def _copy(source: Path, target: Path) -> None:
    for file in source.rglob("*.py"):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())


SIBLINGS = 16
"""Modules that a folder may hold: what a reader can look through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """What a file says of itself. The trees of all files would keep the garbage collector busy, which looks through them again and again."""

    docstring: str
    classes: tuple[str, ...]
    """Those of its top level."""
    imports: frozenset[str]
    """What it imports, at any place in it, for types too."""


@cache
def _contents(file: Path) -> _Contents:
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        tree = ast.parse(file.read_text())
    finally:
        if is_collecting:
            gc.enable()
    imports: set[str] = set()
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            imports |= {f"{node.module}.{one.name}" for one in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            imports |= {one.name for one in node.names}
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return _Contents(docstring=ast.get_docstring(tree) or "", classes=classes, imports=frozenset(imports))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the statements of a file, at any depth. Expressions are most of a tree, and hold none."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        inner = (ast.stmt, ast.ExceptHandler, ast.match_case)
        waiting += [one for one in ast.iter_child_nodes(node) if isinstance(one, inner)]


def _modules() -> dict[str, Path]:
    """The modules of the four packages, by name. Migrations have no names, and programs for other interpreters no package."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
        if "migrations" not in file.parts and ROOT / "proxy" / "clients" not in file.parents
    }


def _imports(name: str, file: Path, modules: dict[str, Path]) -> set[str]:
    """The modules that this one imports."""
    # `from package import module` imports the package as well, which is no dependency on what the package says.
    return {
        one for one in _contents(file).imports if one in modules and one != name and modules[one].name != "__init__.py"
    }


def _circle(modules: dict[str, Path]) -> list[str]:
    """Some modules that import one another in a circle; none where there is no circle."""
    try:
        TopologicalSorter({name: _imports(name, file, modules) for name, file in modules.items()}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_files_import_one_another_in_a_circle() -> None:
    assert _circle(_modules()) == []


def test_a_circle_of_files_is_found(tmp_path: Path) -> None:
    modules = {name: tmp_path / f"{name}.py" for name in ("a", "b", "c")}
    (tmp_path / "a.py").write_text("from b import x\n")
    (tmp_path / "b.py").write_text("def later():\n    import c\n")
    (tmp_path / "c.py").write_text("if TYPE_CHECKING:\n    from a import y\n")
    assert set(_circle(modules)) == {"a", "b", "c"}


def test_every_package_says_what_each_of_its_modules_is_for() -> None:
    lacking = []
    for name, file in _modules().items():
        parent, _, base = name.rpartition(".")
        # The module of a dialect says itself what it is for, so that a dialect can be added without a change of other files.
        if not parent or re.search(r"^DIALECT\b", file.read_text(), re.MULTILINE):
            continue
        said = _contents(ROOT / parent.replace(".", "/") / "__init__.py").docstring
        if not re.search(rf"(?<!\w){re.escape(base)}(?!\w)", said):
            lacking.append(f"{name} ({file.relative_to(ROOT)})")
    assert lacking == []


def test_no_folder_holds_more_modules_than_a_reader_can_look_through() -> None:
    counts = Counter(name.rpartition(".")[0] for name, file in _modules().items() if file.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > SIBLINGS} == {}


INTERFACE = {"calls.framing": "Decoder"}
"""Names that every module of a package has, since it is what others use them by."""


def test_no_two_public_classes_of_a_package_have_one_name() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for name, file in _modules().items():
        for word in _contents(file).classes:
            if not word.startswith("_") and INTERFACE.get(name.rpartition(".")[0]) != word:
                places.setdefault((name.partition(".")[0], word), []).append(name)
    assert {key: names for key, names in places.items() if len(names) > 1} == {}


DEFINITION = re.compile(r"^\s*(?:async def|def|class) (\w+)", re.MULTILINE)
"""Also in the programs that tests have as texts. To parse all files takes four seconds."""

CONTRACTED: dict[str, str] = {}
"""Names that somebody else gave, and who."""


def test_no_function_or_class_is_named_by_a_bare_participle() -> None:
    files = [*_modules().values(), *(file for folder in ("tests", "bench") for file in (ROOT / folder).rglob("*.py"))]
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in DEFINITION.findall(file.read_text())
        if is_bare_participle(name)
    ]
    assert [place for place in found if place.rpartition(" ")[2] not in CONTRACTED] == []


def test_no_variable_or_argument_is_named_by_a_worn_participle() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for folder in (*PACKAGES, "bench", "clients")
        for file in (ROOT / folder).rglob("*.py")
        for line, name in variables_with_participles(file.read_text())
    ]
    assert found == []


def test_a_variable_that_is_named_by_a_participle_is_found() -> None:
    text = """class Answer:
    said: str

def take(given: int, *, options: int) -> int:
    for told in range(given):
        match told:
            case int() as kept:
                wanted, other = kept, told == kept
    "seen, but only said"
    return [gone for gone in (wanted, other)]
"""
    names = [(4, "given"), (5, "told"), (7, "kept"), (8, "wanted"), (10, "gone")]
    assert sorted(variables_with_participles(text)) == names


def test_the_tables_of_journeys_name_every_file_that_the_data_passes() -> None:
    flows = read_flows()
    files = {file for flow in flows.values() for file in flow}
    gone = sorted(file for file in files if not (ROOT / file).exists())
    assert gone == [], "trace the journeys again: python -m bench.structure --write"
    assert list(judge_tables(ROOT, flows)) == []


def test_a_file_that_a_journey_s_table_leaves_out_is_found() -> None:
    flows = {"a.py": [], "b.py": ["a.py"], "c.py": ["b.py"], "d.py": ["c.py"], "e.py": ["d.py"]}
    goal = Goal(title="T", most=4)
    assert list(find_faults(Table(("a.py", "b.py", "c.py", "d.py"), ("e.py",)), goal, flows)) == []

    def faults(path: str, asked: str) -> str:
        table = Table(tuple(f"{name}.py" for name in path), tuple(f"{name}.py" for name in asked))
        return "\n".join(find_faults(table, goal, flows))

    assert "b.py hands data to c.py, which is on the path" in faults("acd", "be")
    assert "e.py handles the data of the call: name it" in faults("abcd", "")
    assert "no data passes between d.py and a file before it" in faults("abd", "ce")
    assert "z.py handles no data of the call" in faults("abz", "cde")
    assert "its path has 5 files; 1 to 4 are allowed" in faults("abcde", "")
    assert "a.py is on the path twice" in faults("aba", "cde")


def test_every_file_that_a_page_names_exists() -> None:
    pages = [
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    named = {
        (page.name, path)
        for page in pages
        for path in re.findall(
            rf"`((?:{'|'.join(PACKAGES)}|bench|clients|deploy|docs|inference|tests)/[\w./-]+)`", page.read_text()
        )
    }
    assert len(named) > 30
    missing = [(page, path) for page, path in named if not (ROOT / path).exists()]
    assert sorted(place for place in missing if not re.search("NAME|NNNN", place[1])) == []
