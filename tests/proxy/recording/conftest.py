"""The spool directory of recorder tests."""

from pathlib import Path

import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a spool."""
    return tmp_path / "spool"
