"""Texts are told and ranked as PostgreSQL does it by all of their words."""

import math
import random
import uuid
from collections.abc import Iterator
from typing import Final

import pytest

from store.database.connection import Database
from store.search.groups import GroupText, make_group
from store.search.matching import TextMatcher
from store.search.query import InvalidQuery, SearchQuery
from tests.store.search.vectors import word_vector

WORDS: Final = (
    "a",
    "aa",
    "ab",
    "b",
    "b_a",
    "Ünö",
    "unö",
    "退款",
    "申请退款",
    "ﬁn",
    "é",
    "환불",
    "환불을",
    "w" * 64,
    "w" * 65,
    "w" * 70,
    "a" * 300,
)

PIECES: Final = (*WORDS, "-", "\n", "½", "a-b/aa", "İ")


def pairs() -> Iterator[tuple[str, SearchQuery]]:
    """Texts and queries, some of which fit."""
    draw = random.Random(3)
    for _ in range(3000):
        query = " ".join(query_part(draw) for _ in range(draw.randint(1, 4)))
        try:
            yield " ".join(draw.choices(PIECES, k=draw.randrange(12))), SearchQuery.parse(query)
        except InvalidQuery:
            continue


def query_part(draw: random.Random) -> str:
    """A word, a phrase or the beginning of a word, which may be excluded."""
    form = draw.choice(("{}", "{}", "{}*", '"{}"', "-{}", '-"{}"', "OR"))
    return form.format(" ".join(draw.choices(WORDS, k=draw.randint(1, 3) if '"' in form else 1)))


async def test_what_fits_and_its_rank_are_those_of_postgres(database: Database) -> None:
    tried = [*pairs(), *long_texts()]
    vectors = [word_vector(text) for text, _ in tried]
    queries = [query.as_tsquery() for _, query in tried]
    places = [TextMatcher(query).places(text) for text, query in tried]
    async with database.connection() as connection:
        expected = await connection.fetch(EXPECTED, vectors, queries, [one.vector for one in places])
    for (text, query), (_, length), row in zip(tried, places, expected, strict=True):
        assert TextMatcher(query).is_fitting(text) == row["fits"], (text, query)
        if row["fits"]:
            rank = row["rank_by_places"] / math.log(length + 1)
            assert rank == pytest.approx(row["rank"], rel=1e-6), (text, query)
    assert sum(row["fits"] for row in expected) > 300
    assert sum(not row["fits"] for row in expected) > 300


def long_texts() -> Iterator[tuple[str, SearchQuery]]:
    """Texts with words that occur more often than PostgreSQL counts, and with more words than it has positions for."""
    for text in ("one two one three " * 1000, "ünö zwei " * 300, "申请退款" * 4096, "one, two " * 40):
        for query in ("one", '"two one"', "zwei", "tw*", "申请", "two -three", "one OR 退款", "款"):
            yield text, SearchQuery.parse(query)


EXPECTED = """
SELECT vector::tsvector @@ query::tsquery AS fits, ts_rank_cd(vector::tsvector, query::tsquery, 4 | 1) AS rank,
    ts_rank_cd(places::tsvector, query::tsquery, 4) AS rank_by_places
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS one (vector, query, places, n) ORDER BY n
"""


async def test_no_group_with_a_text_that_fits_is_missed(database: Database) -> None:
    draw = random.Random(5)
    fitting = [(text, query) for text, query in (*pairs(), *long_texts()) if TextMatcher(query).is_fitting(text)]
    groups, queries = [], []
    for text, query in fitting:
        others = draw.choices(fitting, k=3)
        groups.append(make_group([group_text(one) for one, _ in [*others[:2], (text, query), others[2]]]).words)
        queries.append(query.as_group_tsquery())
    async with database.connection() as connection:
        found = await connection.fetch(GROUPS, groups, queries)
    assert len(found) > 300
    assert all(row["fits"] for row in found)


def group_text(text: str) -> GroupText:
    return GroupText(b"", uuid.UUID(int=0), 1, "prompt", text)


GROUPS = "SELECT words::tsvector @@ query::tsquery AS fits FROM unnest($1::text[], $2::text[]) AS one (words, query)"
