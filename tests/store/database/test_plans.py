"""Connections know the partitions before somebody asks, where there are many."""

import pytest

from store.database import plans
from store.database.connection import Database


@pytest.mark.parametrize(("days", "opened"), [(0, plans.CONNECTIONS), (1000, 0)])
async def test_connections_are_opened_ahead_where_there_are_many_days(
    database: Database, monkeypatch: pytest.MonkeyPatch, days: int, opened: int
) -> None:
    monkeypatch.setattr(plans, "DELAY", 0)
    monkeypatch.setattr(plans, "FEWEST_DAYS", days)
    await plans.warm_connections(database)
    assert database.engine.pool.checkedin() == opened  # type: ignore[attr-defined]


async def test_a_database_that_is_not_there_yet_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "DELAY", 0)
    await plans.warm_connections(Database("postgresql://nobody@127.0.0.1:1/nothing"))
