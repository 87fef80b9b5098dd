"""The option that looks for failures of the API for longer."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seconds", type=int, default=0, help="how long schemathesis makes up requests; 0: shortly")
