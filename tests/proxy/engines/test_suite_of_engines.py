"""Whether this suite runs with each engine: without a guard, nobody noticed for days that it ran with one."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support import wire

WHOLE_SUITE = 100
"""Fewer tests for an engine are a part of the suite that somebody chose."""


def test_as_many_tests_open_a_worker_with_each_engine(request: pytest.FixtureRequest) -> None:
    items = [item for item in request.session.items if Path(__file__).parent in item.path.parents]
    params = [callspec.params for item in items if (callspec := getattr(item, "callspec", None))]
    tests = Counter(param["engine"] for param in params if "engine" in param)
    if max(tests.values(), default=0) < WHOLE_SUITE:
        pytest.skip("only a part of the suite was collected")
    assert all(tests[engine] >= WHOLE_SUITE for engine in wire.ENGINES), tests
