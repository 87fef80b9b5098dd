"""The Triton kernels in Triton's interpreter: correct compared with torch, row-invariant bit by bit, and used by vLLM."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = os.environ.get("PLAYHEAD_INFERENCE_ENV")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        ENVIRONMENT is None, reason="Triton is in the server's environment: name it with PLAYHEAD_INFERENCE_ENV"
    ),
]


@pytest.fixture(scope="module")
def interpreted_kernels() -> dict[str, Any]:
    done = subprocess.run(
        [Path(ENVIRONMENT or "").absolute() / "bin" / "python", Path(__file__).parent / "interpreted.py"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found


def test_a_row_does_not_depend_on_the_others(interpreted_kernels: dict[str, Any]) -> None:
    results = interpreted_kernels["alone"]
    assert {result["kernel"] for result in results} == {"matmul", "rms_norm", "log_softmax", "mean"}
    assert [result for result in results if not result["kept"]] == []
    assert max(result["off"] for result in results) < 1e-4


def test_vllm_s_functions_and_torch_s_matmul_take_them(interpreted_kernels: dict[str, Any]) -> None:
    assert max(interpreted_kernels["in_place"].values()) < 1e-4
    assert interpreted_kernels["multiplied"] == 3


def test_kernels_that_do_not_hold_on_a_device_are_refused_there(interpreted_kernels: dict[str, Any]) -> None:
    assert "failed their verification on cpu" in interpreted_kernels["refused"]
    assert "without --kernels own" in interpreted_kernels["refused"]
