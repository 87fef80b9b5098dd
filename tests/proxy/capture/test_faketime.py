"""A command with another clock: libfaketime is changed so that only clocks are moved, and nothing is shared."""

import os
import subprocess
import sys
from glob import glob
from pathlib import Path
from shutil import which

import pytest

from proxy.capture import faketime
from proxy.capture.faketime import LIBRARIES, NoFaketime, change_library, moved_clock

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
    clock = moved_clock(-40 * 366 * 86_400, environment, tmp_path)
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


# As in programs made with Bun 1.4: malloc reads the clock when it is first called, and has no memory until it has.
OWN_MALLOC = r"""
#include <stddef.h>
#include <time.h>
extern void *__libc_malloc(size_t);
static int state;
void *malloc(size_t size) {
    struct timespec now;
    if (state == 1)
        return NULL;
    if (state == 0) {
        state = 1;
        clock_gettime(CLOCK_REALTIME, &now);
        state = 2;
    }
    return __libc_malloc(size);
}
int puts(const char *);
int main(void) {
    time_t now = time(NULL);
    puts(gmtime(&now)->tm_year < 100 ? "moved" : "present");
    return 0;
}
"""


# As jemalloc, with which redis is linked: malloc holds a lock when it reads the clock for the first time.
LOCKED_MALLOC = r"""
#include <stddef.h>
#include <time.h>
extern void *__libc_malloc(size_t);
int puts(const char *);
void abort(void);
static int has_lock, has_begun;
void *malloc(size_t size) {
    struct timespec now;
    if (has_lock)
        abort();
    if (!has_begun) {
        has_lock = 1;
        clock_gettime(CLOCK_REALTIME, &now);
        has_lock = 0;
        has_begun = 1;
    }
    return __libc_malloc(size);
}
int main(void) {
    time_t now = time(NULL);
    puts(gmtime(&now)->tm_year < 100 ? "moved" : "present");
    return 0;
}
"""


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
@pytest.mark.parametrize("program_source", [OWN_MALLOC, LOCKED_MALLOC], ids=["without memory", "locked"])
@pytest.mark.skipif(which("gcc") is None, reason="gcc is not installed")
def test_a_program_with_its_own_malloc_has_another_clock_also_below_a_shell(
    tmp_path: Path, program_source: str
) -> None:
    source, program = tmp_path / "own.c", tmp_path / "own"
    source.write_text(program_source)
    subprocess.run(["gcc", "-o", program, source], check=True, timeout=60)
    environment = {"PATH": os.environ["PATH"]}
    clock = moved_clock(-40 * 366 * 86_400, environment, tmp_path)
    ((copy, _),) = clock.binds
    variables = {**environment, **clock.variables, "LD_PRELOAD": copy}
    for words in ([str(program)], ["sh", "-c", f"{program}; true"]):
        ended = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=60)
        assert (ended.stdout, ended.stderr) == ("moved\n", "")


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
def test_nothing_is_shared_that_a_killed_command_could_leave_behind(tmp_path: Path) -> None:
    clock = moved_clock(-5, {"LD_PRELOAD": "/own.so"}, tmp_path)
    assert clock.variables["LD_PRELOAD"].endswith(".so.1:/own.so")
    assert clock.variables["FAKETIME"] == "-5"
    ((copy, _),) = clock.binds
    words = ["sh", "-c", "echo $$; date > /dev/null; echo ${FAKETIME_SHARED-none}; kill -9 $$"]
    variables = {"PATH": os.environ["PATH"], **clock.variables, "LD_PRELOAD": copy}
    pid, shared = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=60).stdout.split()
    assert shared == "none"
    assert not list(Path("/dev/shm").glob(f"*faketime*{pid}"))


def test_why_a_clock_cannot_be_moved_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(environment: dict[str, str]) -> str:
        with pytest.raises(NoFaketime) as why:
            moved_clock(-5, environment, tmp_path)
        return str(why.value)

    assert reason({"FAKETIME": "+1d"}) == "the variable FAKETIME is set already"
    for content in (b"text", b"\x7fELF\x02\x01", Path("/bin/true").read_bytes()):
        other = tmp_path / "other.so"
        other.write_bytes(content)
        monkeypatch.setattr(faketime, "LIBRARIES", (str(other),))
        assert "cannot be used: " in reason({})
    monkeypatch.setattr(faketime, "LIBRARIES", ("/nowhere/*",))
    assert reason({}).startswith("libfaketime is not installed")


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
def test_a_library_that_shares_memory_in_another_way_is_not_used() -> None:
    assert LIBRARY is not None
    other = Path(LIBRARY).read_bytes().replace(b"\0getenv\0", b"\0getenW\0")
    with pytest.raises(ValueError, match="it does not use getenv"):
        change_library(other)
