"""A command with another clock: libfaketime is changed so that only clocks are moved, and what commands share is removed."""

import os
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest

from proxy.capture import faketime
from proxy.capture.faketime import LIBRARIES, NoFaketime, moved_clock

LIBRARY = next((path for pattern in LIBRARIES for path in glob(pattern)), None)

WAITS = """
import queue, threading, time
begun = time.monotonic()
time.sleep(0.02)
threading.Event().wait(0.02)
try:
    queue.Queue().get(timeout=0.02)
except queue.Empty:
    pass
threading.Thread(target=time.sleep, args=(0.02,)).start()
print(time.strftime("%Y"), 0.06 <= time.monotonic() - begun < 30)
"""


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
def test_a_program_has_another_year_and_waits_as_long_as_ever(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    with moved_clock(-40 * 366 * 86_400, environment, tmp_path) as clock:
        # A captive command has the copy in place of the library.
        ((copy, library),) = clock.binds
        variables = {**clock.variables, "LD_PRELOAD": copy}
        assert clock.variables["LD_PRELOAD"] == library
        # The Python of this test: from 3.11 on, the library as it is breaks `time.sleep`.
        words = [sys.executable, "-S", "-c", WAITS]
        ended = subprocess.run(words, env=environment | variables, capture_output=True, timeout=60)
        year, has_waited = ended.stdout.split()
        assert (int(year) < 2000, has_waited) == (True, b"True"), ended
        shell = ["bash", "-c", "printf '%(%Y)T' -1"]
        assert int(subprocess.run(shell, env=environment | variables, capture_output=True, timeout=60).stdout) < 2000
        names = clock.variables["FAKETIME_SHARED"].split()
        left = faketime.SHARED_MEMORY / names[1].lstrip("/")
        assert left.exists()
    assert not left.exists()
    assert not list(faketime.SHARED_MEMORY.glob(f"*{names[0].lstrip('/')}*"))


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, timeout=60)
    left = faketime.SHARED_MEMORY / f"{faketime.NAME}{ended.stdout.strip()}-0.memory"
    left.touch()
    with moved_clock(-5, {"LD_PRELOAD": "/own.so"}, tmp_path) as clock:
        assert clock.variables["LD_PRELOAD"].endswith(".so.1:/own.so")
        assert clock.variables["FAKETIME"] == "-5"
    assert not left.exists()


def test_why_a_clock_cannot_be_moved_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(environment: dict[str, str]) -> str:
        with pytest.raises(NoFaketime) as why, moved_clock(-5, environment, tmp_path):
            pass
        return str(why.value)

    assert reason({"FAKETIME": "+1d"}) == "the variable FAKETIME is set already"
    for content in (b"text", b"\x7fELF\x02\x01", Path("/bin/true").read_bytes()):
        other = tmp_path / "other.so"
        other.write_bytes(content)
        monkeypatch.setattr(faketime, "LIBRARIES", (str(other),))
        assert "cannot be used: " in reason({})
    monkeypatch.setattr(faketime, "LIBRARIES", ("/nowhere/*",))
    assert reason({}).startswith("libfaketime is not installed")
