"""Our Triton kernels in Triton's interpreter: right beside torch, and each row the same to the bit in any batch."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ENVIRONMENT = os.environ.get("PLAYHEAD_INFERENCE_ENV")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    ENVIRONMENT is None, reason="Triton is in the server's environment: name it with PLAYHEAD_INFERENCE_ENV"
)
def test_a_row_does_not_depend_on_the_others() -> None:
    done = subprocess.run(
        [Path(ENVIRONMENT or "").absolute() / "bin" / "python", Path(__file__).parent / "interpreted.py"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(done.stdout)
    assert {result["kernel"] for result in results} == {"matmul", "rms_norm", "log_softmax", "mean"}
    assert [result for result in results if not result["kept"]] == []
    assert max(result["off"] for result in results) < 1e-4
