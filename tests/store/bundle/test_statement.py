"""Statements are what a reader makes of a bundle."""

import json

from hypothesis import given
from hypothesis import strategies as st

from calls.events import Gap
from calls.model import Exchange
from store.bundle.bundle import BundleWriter, Entry
from store.bundle.statement import exchange_statement, exchange_statement_of_json, gap_statement
from tests.store.exchanges import exchanges

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(exchanges.filter(lambda one: abs(one.step or 0) < 1 << 63))
def test_the_statement_of_an_exchange_follows_from_its_line(one: Exchange) -> None:
    line = json.loads(BundleWriter().exchange(Entry(exchange=one)))
    assert exchange_statement(one) == exchange_statement_of_json(line["exchange"])


@given(st.builds(Gap, TEXT, st.integers(0, (1 << 63) - 1), TEXT, st.none() | TEXT, st.integers(1, 1 << 30)))
def test_the_statement_of_a_gap_follows_from_its_line(gap: Gap) -> None:
    line = json.loads(BundleWriter().gap(gap))
    assert gap_statement(gap) == exchange_statement_of_json(line["gap"])
