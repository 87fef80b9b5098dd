"""Tests of what only the lane does."""

import pytest

from tests.support import wire


@pytest.fixture(autouse=True)
def _lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "engine", "lane")
