"""What the name of a recording means."""

import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from calls.redaction.redactor import Redactor
from proxy.commands.generations import Generations
from proxy.commands.import_files import ImportOptions, import_files
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, resolve_run_name
from proxy.run_names import missing_file_failure, recording_path, unknown_run_failure
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.datadir import open_data_dir
from store.generations.names import GENERATION_OF
from tests.store.exchanges import conversation


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_bundle(file: Path) -> Path:
    entries = tuple(Entry(exchange=exchange) for exchange in conversation(1))
    file.write_bytes(b"".join(bundle_lines(Bundle(run={"id": "night"}, profiles="sha256:0", entries=entries))))
    return file


def test_a_recording_goes_by_any_name(here: Path) -> None:
    for name in ("night", "night.jsonl", "a night"):
        write_bundle(here / name)
        assert recording_path(name) == Path(name)
        assert recording_path(f"./{name}") == Path(name)


@pytest.mark.parametrize("content", ["notes\n", "", "[1]", "a: b\n", '{"a": 1}'])
def test_what_lies_here_under_a_run_s_name_by_chance_is_not_meant(here: Path, content: str) -> None:
    (here / "night").write_text(content)
    assert recording_path("night") is None
    assert "name it as ./night" in str(unknown_run_failure("night"))
    assert recording_path("./night") == Path("night"), "whoever says that it is a file is told what is wrong with it"


@pytest.mark.parametrize("name", ["night.jsonl", "night.yaml", "my notes"])
def test_a_file_whose_name_is_a_file_s_is_meant_whatever_it_holds(here: Path, name: str) -> None:
    (here / name).write_text("notes\n")
    assert recording_path(name) == Path(name)


def test_what_is_not_here_is_a_run(here: Path) -> None:
    (here / "night").mkdir()
    assert recording_path("night") is None
    assert "there is no run day here; `playhead ls`" in str(unknown_run_failure("day"))


@pytest.mark.parametrize(
    ("name", "words"), [("/dev/null", "a pipe or a device"), ("./", "a directory"), ("./day", "no bundle ./day; make")]
)
def test_a_path_that_is_no_file_is_named_for_what_it_is(name: str, words: str) -> None:
    assert words in str(missing_file_failure(name))


def test_a_file_that_would_be_a_run_that_nobody_can_name_is_not_imported(here: Path) -> None:
    file = here / "last.yaml"
    file.write_text("interactions: []\n")
    options = ImportOptions(redactor=Redactor(key=bytes(32)), profiles="", run=None, form=None, extra_headers=())
    imported, failures = import_files(cast(Api, None), [file], options)
    assert not imported
    (failure,) = map(str, failures)
    assert re.search(r"last.yaml would become run 'last', .*; choose one with --run ID", failure)


RUNS = [
    {"id": "empty", "calls": 0, "labels": {}},
    {"id": "replay-1", "calls": 1, "labels": {GENERATION_OF: "night"}},
    {"id": "night:g2", "calls": 2, "labels": {GENERATION_OF: "night"}},
    {"id": "night", "calls": 1, "labels": {}},
]


class StoreServer:
    """Knows of some runs."""

    def __init__(self, *runs: dict[str, Any], data: Path | None = None) -> None:
        self.runs = runs
        self.data = open_data_dir(data) if data else None

    async def connect_store_server(self, **_: object) -> "StoreServer":
        return self

    def require_same_profiles(self, *, own_worker: bool) -> None:
        """There is nothing to disagree about."""

    def list_items(self, _path: str, **_query: Any) -> Iterator[dict[str, Any]]:
        return iter(self.runs)


@pytest.mark.parametrize(("runs", "last"), [(RUNS, "night:g2"), (RUNS[3:], "night"), (RUNS[:2] + RUNS[3:], "night")])
def test_the_last_run_is_the_newest_that_is_not_the_remains_of_a_replay(runs: list[dict[str, Any]], last: str) -> None:
    assert resolve_run_name(cast(Api, StoreServer(*runs)), "last") == last


async def test_what_is_recorded_beside_a_replay_of_the_last_run_does_not_take_its_name(here: Path) -> None:
    processes = cast(CommandProcesses, StoreServer(*RUNS[3:], data=here / "data"))
    async with AsyncExitStack() as stack:
        assert (await Generations.begin(processes, "replay-1", "last", stack)).recording == "night"
        file = str(write_bundle(here / "night.jsonl"))
        assert (await Generations.begin(processes, "replay-1", file, stack)).recording == file
