"""The console script: it starts a command's proxy worker, and imports the command line while that starts."""

import os
import sys

from proxy.processes.early_worker import end_early_worker, start_early_worker


def main() -> None:
    """Run the command line (`proxy.cli.main`)."""
    # Where a standard stream is closed, the worker's socket would get its number: the command line opens such streams first.
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        start_early_worker(sys.argv[1:], os.environ)
    try:
        from proxy.cli import main as run_command_line

        run_command_line()
    finally:
        end_early_worker()
