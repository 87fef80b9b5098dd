"""The module of each command can be imported where nothing is that others import."""

import subprocess
import sys

import pytest

from proxy.cli import COMMANDS
from tests.support.service import command, surroundings

ONE_BY_ONE = """
import gc, os, sys
from importlib import import_module
import proxy.cli
from proxy.processes.early_worker import NEEDED_BY_BOTH

gc.disable()

def import_in_fork(*names):
    # Each in a fork of this interpreter, which has imported the command line alone.
    if (pid := os.fork()) == 0:
        for name in names:
            import_module(name)
        if names == WORKER or names in FORKING:
            if unneeded := [name for name in NEEDED_BY_BOTH if name not in sys.modules]:
                os._exit(bool(os.write(2, f"imported before the fork, and not needed: {unneeded}".encode())))
        if late := [name for name in LATE.get(names, ()) if name in sys.modules]:
            os._exit(bool(os.write(2, f"imported by {names[0]} before it is ready: {late}".encode())))
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit(f"{names}: {status}")

WORKER = ("proxy.worker.process", "proxy.lane.lane", "proxy.worker.replay_reports", "proxy.worker.replay_setup")
STORE_SERVER = ("store.server", "store.api.app", "store.api.server")
FORKING = (("proxy.cli.record",), ("proxy.cli.replay",))
LATE = {
    WORKER: (
        *("cryptography", "ngh2", "http.client", "importlib.resources", "tomllib", "calendar", "ctypes"),
        *("calls.dialects.openai.chat", "calls.telemetry", "store.diff.word_diff", "store.foreign.httprr"),
        *("replay.forks.fork", "replay.overrides.prepare", "proxy.worker.preloaded_recordings"),
    ),
    STORE_SERVER: ("httpx2", "yaml", "store.foreign.write", "calls.dialects.openai.chat"),
    **dict.fromkeys(FORKING, ("http.client", "urllib.request", "calls.model", "proxy.commands.override_file")),
}
for name in sys.argv[1:]:
    import_in_fork(f"proxy.cli.{name}")
import_in_fork(*WORKER)
import_in_fork(*STORE_SERVER)
"""
"""`LATE`: what processes import when they are ready or when they need it, which took a third of a worker's start."""


@pytest.mark.own_interpreter
def test_each_command_starts_without_what_others_import() -> None:
    """Tests start commands as forks of one process that has imported all of them, which would hide a missing import."""
    modules = sorted({module for module, _ in COMMANDS.values()})
    subprocess.run([sys.executable, "-c", ONE_BY_ONE, *modules], env=surroundings(), check=True)
    help_text = subprocess.run(command("ls", "--help"), env=surroundings(), capture_output=True, text=True, check=True)
    assert help_text.stdout.startswith("Usage: playhead ls ")
