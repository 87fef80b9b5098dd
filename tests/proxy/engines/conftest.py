"""One suite for both engines: every test that opens a worker runs with each of them."""

import inspect

import pytest

from tests.support import wire


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine(name): what only this engine does")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # By the function, not by a name: when it was renamed, the suite went on with one engine and nobody noticed.
    if inspect.iscoroutinefunction(metafunc.function) and wire.open_worker in vars(metafunc.module).values():
        only = metafunc.definition.get_closest_marker("engine")
        metafunc.parametrize("engine", only.args if only else list(wire.ENGINES), indirect=True)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine under test."""
    name: str = getattr(request, "param", "mitmproxy")
    monkeypatch.setattr(wire, "engine", name)
    return name
