"""The console script: it starts a command's proxy worker, and imports the command line while that starts."""

import gc
import os
import sys
from contextlib import suppress

from proxy.processes.early_worker import end_early_worker, start_early_worker


def main() -> None:
    """Run the command line (`proxy.cli.main`)."""
    # The collector would take a tenth of the time of imports, and look in vain.
    gc.disable()
    # Where a standard stream is closed, the worker's socket would get its number: the command line opens such streams first.
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        start_early_worker(sys.argv[1:], os.environ)
    try:
        from proxy.cli import load_command
        from proxy.cli import main as run_command_line

        with suppress(ModuleNotFoundError):  # the command line says what is not installed
            load_command(sys.argv[1] if len(sys.argv) > 1 else "")
        # What was imported lives to the end. Otherwise the first collection would go through all of it.
        gc.freeze()
        gc.enable()
        run_command_line()
    finally:
        end_early_worker()
