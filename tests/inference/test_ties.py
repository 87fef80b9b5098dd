"""Equal logits are reported in one order, however many the batch asks for; and a step that depends on the batch is found."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = os.environ.get("PLAYHEAD_INFERENCE_ENV")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        ENVIRONMENT is None, reason="torch is in the server's environment: name it with PLAYHEAD_INFERENCE_ENV"
    ),
]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    done = subprocess.run(
        [Path(ENVIRONMENT or "").absolute() / "bin" / "python", Path(__file__).parent / "equal_logits.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found


def test_the_order_is_that_of_a_stable_sort(results: dict[str, Any]) -> None:
    assert results["wrong"] == []


def test_a_neighbour_that_wants_twenty_does_not_change_the_first_five(results: dict[str, Any]) -> None:
    assert results["stock"] > 0, "torch's own order did not depend on the number either, so this shows nothing"
    assert results["patched"] == 0
    assert results["others"] == [0, 1], "every other function is torch's"


def test_the_control_gets_torch_s_own_order(results: dict[str, Any]) -> None:
    assert results["off"]


def test_a_step_of_the_sampler_that_depends_on_the_batch_is_named(results: dict[str, Any]) -> None:
    assert results["steps"] == ["sampler, dependent, at 3 requests and 0 more numbers of them"]


def test_top_p_is_never_split_and_always_gets_both_limits(results: dict[str, Any]) -> None:
    half, whole = [0.5, 1.0], [1.0, 1.0]
    assert results["top_p"] == [0, [[3, 9], whole], [[9, 9], half], [[3, 9], half]]
