"""What a page of a long run costs: no statement compares each call of the run with each call of the page."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from store.call_graph import retry_query
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


async def test_the_repeats_of_failed_requests_are_looked_up(database: Database) -> None:
    statement = str(retry_query._SAME_REQUESTS.compile(database.engine.sync_engine))
    async with database.transaction() as connection:
        explained = await connection.exec_driver_sql(
            f"EXPLAIN (FORMAT json) {statement}", ("default", ["run"], [b"key"])
        )
        assert comparisons(json.dumps(explained.scalar())) == []
