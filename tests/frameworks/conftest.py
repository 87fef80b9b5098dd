"""The option that runs the frameworks which take long to install as well; interpreters that have imported theirs."""

from collections.abc import Iterator

import pytest

from tests.frameworks.environments import Interpreters


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--frameworks",
        choices=["quick", "all"],
        default="quick",
        help="all: those too that install slowly, and each in every habit",
    )


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Interpreters]:
    """Those of all frameworks, each started when it is first needed."""
    made = Interpreters()
    yield made
    made.close()
