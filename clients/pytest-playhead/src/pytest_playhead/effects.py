"""Record what a test gets from elsewhere than the network, such as the time and random numbers, and give it back in a replay.

The hook is Playhead's own (`playhead record --effects`), and is loaded from where Playhead is installed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from pytest_playhead.fixtures_process import FixturesError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OLDEST_PYTHON = (3, 10)
TEST_RUNNERS = ("_pytest", "pytest", "pluggy", "iniconfig", "xdist", "execnet", "pytest_playhead")
"""Packages of the test runner. What they ask for is neither recorded nor answered."""


class TestEffects:
    """The hook in this process. One test after the other begins and ends."""

    __test__ = False

    def __init__(self) -> None:
        self._hook: Any = None
        self._previous: dict[str, str | None] = {}

    def begin(self, place: Mapping[str, Any], request: pytest.FixtureRequest, own: Mapping[str, str]) -> None:
        """Hook this process. `own`: variables that Playhead has set. Raises FixturesError."""
        if sys.version_info < OLDEST_PYTHON:
            raise FixturesError("effects=True needs Python 3.10 or later")
        self._set_environment(_environment(place, request, own))
        try:
            if self._hook is None:
                self._hook = _load_hook(place["hook"], request.config)
            self._hook.begin()
        except (OSError, ValueError) as error:
            self._restore_environment()
            raise FixturesError(f"the effects of this test can neither be recorded nor answered: {error}") from error
        os.environ["PLAYHEAD_EFFECTS_PROCESS"] = "0.x"

    def end(self) -> None:
        """Put back what was replaced, and send what is left. Nothing happens if no test has begun."""
        if not self._previous:
            return
        try:
            self._hook.end()
        finally:
            self._restore_environment()

    def _set_environment(self, variables: Mapping[str, str]) -> None:
        self._previous = {name: os.environ.get(name) for name in (*variables, "PLAYHEAD_EFFECTS_PROCESS")}
        os.environ.update(variables)
        _read_time_zone()

    def _restore_environment(self) -> None:
        for name, value in self._previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._previous = {}
        _read_time_zone()


def _read_time_zone() -> None:
    if hasattr(time, "tzset"):
        time.tzset()


def _environment(place: Mapping[str, Any], request: pytest.FixtureRequest, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a test: for the hook in this process and in Python processes that the test starts."""
    config = request.config
    places = [(str(config.rootpath), "<rootdir>"), (sys.executable, "<python>")]
    apart = ""
    if config.pluginmanager.has_plugin("tmpdir"):
        apart = str(request.getfixturevalue("tmp_path_factory").getbasetemp())
        places.append((apart, "<tmp>"))
    return {
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        **place["pinned"],
        "PYTHONPATH": os.pathsep.join(filter(None, (place["hook"], os.environ.get("PYTHONPATH")))),
        "PLAYHEAD_EFFECTS": place["socket"],
        "PLAYHEAD_EFFECTS_RUN": place["run"],
        "PLAYHEAD_EFFECTS_TOKEN": place["token"],
        "PLAYHEAD_EFFECTS_OWN": ",".join((*own, "PYTHONPATH")),
        "PLAYHEAD_EFFECTS_PLACES": json.dumps(places),
        "PLAYHEAD_EFFECTS_APART": apart,
    }


def _load_hook(directory: str, config: pytest.Config) -> Any:
    sys.path.insert(0, directory)
    try:
        module = import_module("playhead_effects.in_process")
    finally:
        sys.path.remove(directory)
    return module.TestHook(sorted(set(_runner_files(config))))


def _runner_files(config: pytest.Config) -> Iterator[str]:
    """Yield the files and directories of the test runner and of its installed plugins."""
    plugins = [plugin for plugin, _ in config.pluginmanager.list_plugin_distinfo()]
    for module in (*map(sys.modules.get, TEST_RUNNERS), *plugins):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            name = os.path.basename(file)
            yield os.path.dirname(file) + os.sep if name == "__init__.py" else file
