"""What a page of a long run costs: no call of the run is compared with each call of the page."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.asyncpg import dialect

from store.call_graph.retry_query import _SAME_REQUESTS
from store.database.connection import Database
from store.query.call_reader import NTHS, STEPS

COMPARISON = re.compile(r"\b(id|key) (= ANY|<> ALL) \(")
IDS = [uuid.UUID(int=number) for number in range(3)]


def plan_nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a plan."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from plan_nodes(below)


def comparisons(explained: str) -> list[str]:
    """The conditions of a plan that compare a row with each member of an array, other than those of an index."""
    conditions = [node.get("Filter", "") for node in plan_nodes(json.loads(explained)[0]["Plan"])]
    return [condition for condition in conditions if COMPARISON.search(condition)]


@pytest.mark.parametrize("statement", [STEPS, NTHS], ids=["steps", "nths"])
async def test_the_places_of_a_page_are_looked_up(database: Database, statement: str) -> None:
    parameters = ["default", ["run"], IDS, IDS][: 4 if "$4" in statement else 3]
    async with database.connection() as connection:
        explained = await connection.fetchval(f"EXPLAIN (FORMAT json) {statement}", *parameters)
    assert comparisons(explained) == []


async def test_repeats_of_failed_requests_are_looked_up(database: Database) -> None:
    statement = _SAME_REQUESTS.compile(dialect=dialect())  # type: ignore[no-untyped-call] # SQLAlchemy's
    values = {"project": "default", "runs": ["run"], "keys": [b"one", b"two"]}
    parameters = [values[name] for name in statement.positiontup or ()]
    async with database.connection() as connection:
        explained = await connection.fetchval(f"EXPLAIN (FORMAT json) {statement}", *parameters)
    assert comparisons(explained) == []
