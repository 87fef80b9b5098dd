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

gc.disable()
# Each in a fork of this interpreter, which has imported the command line alone.
for name in sys.argv[1:]:
    if (pid := os.fork()) == 0:
        import_module(f"proxy.cli.{name}")
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit(f"{name}: {status}")
"""


@pytest.mark.own_interpreter
def test_each_command_starts_without_what_others_import() -> None:
    """Tests start commands as forks of one process that has imported all of them, which would hide a missing import."""
    modules = sorted({module for module, _ in COMMANDS.values()})
    subprocess.run([sys.executable, "-c", ONE_BY_ONE, *modules], env=surroundings(), check=True)
    help_text = subprocess.run(command("ls", "--help"), env=surroundings(), capture_output=True, text=True, check=True)
    assert help_text.stdout.startswith("Usage: playhead ls ")
