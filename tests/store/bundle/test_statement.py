"""Statements are what a reader makes of a bundle."""

import json
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from calls.codec.canonical import canonical_json
from calls.events import Gap
from calls.model import Exchange
from store.bundle.bundle import BundleWriter, Entry
from store.bundle.statement import exchange_statement, gap_statement
from tests.store.exchanges import exchanges

BODY_BYTES: Final = ("base64", "digest", "opened", "prefix", "suffix", "text")
"""The members of a body that a statement leaves out: its bytes have a commitment of their own."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def exchange_statement_of_json(exchange: Mapping[str, Any]) -> bytes:
    """The statement of an exchange as a line of a bundle shows it."""
    members = dict(exchange)
    for side in ("request", "response"):
        message = members.get(side)
        if isinstance(message, Mapping) and isinstance(body := message.get("body"), Mapping):
            without_bytes = {name: value for name, value in body.items() if name not in BODY_BYTES}
            members[side] = {**message, "body": without_bytes}
    return canonical_json(members)


@given(exchanges.filter(lambda one: abs(one.step or 0) < 1 << 63))
def test_the_statement_of_an_exchange_follows_from_its_line(one: Exchange) -> None:
    line = json.loads(BundleWriter().exchange(Entry(exchange=one)))
    assert exchange_statement(one) == exchange_statement_of_json(line["exchange"])


@given(st.builds(Gap, TEXT, st.integers(0, (1 << 63) - 1), TEXT, st.none() | TEXT, st.integers(1, 1 << 30)))
def test_the_statement_of_a_gap_follows_from_its_line(gap: Gap) -> None:
    line = json.loads(BundleWriter().gap(gap))
    assert gap_statement(gap) == exchange_statement_of_json(line["gap"])
