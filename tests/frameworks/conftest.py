"""The option that runs the frameworks which take long to install as well."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--frameworks",
        choices=["quick", "all"],
        default="quick",
        help="all: those too that install slowly, and each in every habit",
    )
