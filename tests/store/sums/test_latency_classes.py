"""Classes of latencies: the same in Python and in SQL, and within one percent."""

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import ARRAY, BigInteger, func, literal, select

from store.database.connection import Database
from store.sums.latency_classes import LAST_CLASS, SHORTEST, class_column, class_latency, latency_class

DAY = 24 * 3600 * 1_000_000_000


@given(st.integers(SHORTEST, DAY))
def test_the_latency_of_a_class_is_within_one_percent(nanoseconds: int) -> None:
    assert abs(class_latency(latency_class(nanoseconds)) / nanoseconds - 1) < 0.0101


@given(st.integers(0, 2 * DAY), st.integers(0, 2 * DAY))
def test_a_longer_latency_has_no_lower_class(one: int, other: int) -> None:
    shorter, longer = sorted((one, other))
    assert 0 <= latency_class(shorter) <= latency_class(longer) <= LAST_CLASS


async def test_sql_makes_the_same_classes(database: Database) -> None:
    values = [0, 1, SHORTEST - 1, SHORTEST, SHORTEST + 1, *(SHORTEST * 7**power // 5**power for power in range(1, 60))]
    column = func.unnest(literal(values, ARRAY(BigInteger))).column_valued("value")
    query = select(column, class_column(column))
    async with database.transaction() as connection:
        rows = (await connection.execute(query)).all()
        nothing = await connection.scalar(select(class_column(literal(None, BigInteger))))
    assert dict(map(tuple, rows)) == {value: latency_class(value) for value in values}
    assert nothing is None
