"""A Postgres that is started while modules are imported is the same server, and its errors are those of the start."""

from pathlib import Path

import pytest

from store.embedded.early_start import EarlyStart
from store.embedded.postgres import EmbeddedPostgresError


def test_the_error_of_a_start_is_raised_where_the_server_is_wanted(tmp_path: Path) -> None:
    occupied = tmp_path / "pg"
    occupied.write_text("a file where the directory would be")
    start = EarlyStart(occupied)
    with pytest.raises(EmbeddedPostgresError, match="cannot use the directory"):
        start.wait()
    start.close()
