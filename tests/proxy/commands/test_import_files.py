"""An import that is interrupted: whether the store server goes on depends on what it has of the file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from calls.redaction.redactor import Redactor
from proxy.commands.import_files import ImportOptions, import_files
from proxy.processes.store_client import Api
from tests.proxy.test_cli import bundle_file
from tests.store.exchanges import exchange


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
