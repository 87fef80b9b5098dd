"""An import that is interrupted: whether the store server goes on depends on what it has of the file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from calls.redaction.redactor import Redactor
from proxy.commands.import_files import ImportOptions, import_files
from proxy.errors import Failure
from proxy.processes.store_client import Api
from tests.proxy.test_cli import bundle_file
from tests.store.exchanges import exchange

DAY = 86_400_000_000_000
"""Nanoseconds."""


class InterruptedApi:
    """A store server whose user presses Ctrl-C when it has so many pieces of a file."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces

    def post(self, path: str, *, content: Iterable[bytes], **_: Any) -> Any:
        """Take some pieces, and be interrupted."""
        assert path == "/import"
        for number, _piece in enumerate(content):
            if number == self._pieces:
                break
        raise KeyboardInterrupt


@pytest.mark.parametrize(("pieces", "goes_on"), [(0, False), (100, True)])
def test_who_interrupts_an_import_is_told_that_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pieces: int, goes_on: bool
) -> None:
    file = bundle_file(tmp_path / "run.jsonl", [exchange(b"1", b"x" * (3 << 20), run="run-1")])
    options = ImportOptions(redactor=Redactor(key=b"k" * 32), profiles="p", run=None, form=None, extra_headers=())
    with pytest.raises(KeyboardInterrupt):
        import_files(cast("Api", InterruptedApi(pieces)), [file], options)
    assert ("goes on storing it" in capsys.readouterr().err) is goes_on


class CountingApi:
    """A store server that refuses the first file, and notes which days each request names."""

    def __init__(self) -> None:
        self.days: list[str | None] = []

    def post(self, path: str, *, params: Mapping[str, str], **_: Any) -> Any:
        """Take a file."""
        self.days.append(params.get("days"))
        if len(self.days) == 1:
            raise Failure("no")
        return {"id": "one", "exchanges": 1, "imported": 1}


def test_the_first_import_of_several_names_the_days_of_all(tmp_path: Path) -> None:
    files = [
        bundle_file(tmp_path / f"{number}.jsonl", [replace(exchange(b"1", b"x", run="run-1"), started_at=day * DAY)])
        for number, day in enumerate((20_001, 20_000, 20_001))
    ]
    options = ImportOptions(redactor=Redactor(key=b"k" * 32), profiles="p", run=None, form=None, extra_headers=())
    api = CountingApi()
    import_files(cast("Api", api), files, options)
    assert api.days == ["2024-10-04,2024-10-05", "2024-10-04,2024-10-05", None]
