"""If the patch cannot be turned off, the control of stock vLLM runs first, in its own process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "inference"

SERVED = "import sys; from playhead_inference import control; sys.executable = sys.argv[1]; print(control.run_control(sys.argv[2:]))"
"""Run the control like the server does, with a fake vLLM."""

PLAYED = """
import pathlib, sys, time
file, model = pathlib.Path(sys.argv[3]), sys.argv[5]
if model == "broken":
    sys.exit(3)
print("started", flush=True)
if model == "slow":
    time.sleep(60)
file.write_text("what stock gives")
"""


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}{PLAYED}")
    python.chmod(0o755)
    return [sys.executable, "-c", SERVED, str(python), "--model"]


ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def test_what_stock_gives_is_known_before_the_server_starts(server: list[str]) -> None:
    done = subprocess.run([*server, "qwen3"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "what stock gives"


def test_without_a_control_no_server_starts(server: list[str]) -> None:
    done = subprocess.run([*server, "broken"], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the control run of stock vLLM ended with exit code 3" in done.stderr


def test_whoever_ends_the_server_ends_its_control(server: list[str]) -> None:
    running = subprocess.Popen(
        [*server, "slow"], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "started\n"
    running.send_signal(signal.SIGTERM)
    # The pipes close only after the control has ended too.
    running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
