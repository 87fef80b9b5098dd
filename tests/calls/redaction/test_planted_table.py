"""The table in docs/security.md states what a search for planted secrets finds."""

import re
from pathlib import Path

import pytest

from calls.dialects.table import DIALECTS
from calls.redaction.redactor import RedactionRules, Redactor
from calls.redaction.rules.credentials import RULES
from tests.calls.positions import REDACTOR, bodies, is_shown, plants, render_table, spelled_base64, table
from tests.calls.secrets import KEY
from tests.calls.test_conformance import NEVER_STREAMED
from tests.calls.token_samples import FAMILIES, token

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
NOT_IN_PIECES = {"generic", "graphql", "replicate", "sagemaker", "bedrock_agent"}
"""Dialects whose captured streams have no string that grows: all but the first two have positions of their own."""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_page_says_what_is_found() -> None:
    found, stated = parse_rows(render_table(table())), parse_rows(PAGE.read_text())

    assert {name: leaked for name, (_, leaked) in found.items()} == {
        name: leaked for name, (_, leaked) in stated.items()
    }
    # A capture that is added plants more than the page states.
    assert {name for name, (planted, _) in stated.items() if planted > found[name][0]} == set()


def parse_rows(page: str) -> dict[str, tuple[int, str]]:
    """The rows of the table: where secrets are planted; how many, and how many of them leak."""
    [rows] = re.findall(r"(?m)^\| where \| planted .*\n\|.*\n((?:\|.*\n)+)", page)
    cells = [[cell.strip("* ") for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    return {name: (int(count.replace(",", "")), leaked) for name, count, leaked in cells}


def test_secrets_are_planted_in_the_streams_of_every_dialect() -> None:
    dialects = {dialect.name for dialect in DIALECTS} - NEVER_STREAMED
    assert dialects - {plant.dialect for plant in plants()} <= NOT_IN_PIECES


def test_a_leak_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.calls.positions.REDACTOR", Redactor(RedactionRules(credentials=RULES[:1]), KEY))

    assert all(is_shown(token(FAMILIES[0]), one.show(token(FAMILIES[0]))) for one in bodies() if one.kind == "token")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 40])
def test_base64_in_pieces_of_any_size_is_decoded_and_redacted_once(size: int) -> None:
    new = spelled_base64("key = ghp_aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3d", size)

    assert REDACTOR.redact_body(new, "text/event-stream") == (new, 0, False)
