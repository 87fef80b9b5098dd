"""How much of the corpus goes through the service."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--corpus", choices=["sample", "all"], default="sample", help="how much of ../shared/corpus to use"
    )
