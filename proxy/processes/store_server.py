"""Run the store server with the check of replay options, which the store does not import: `python -m proxy.processes.store_server`."""

import sys
from typing import Final

from replay.replay_options import rejection_reason
from store.server import main

HELPER_COMMAND: Final = (sys.executable, "-m", "proxy.processes.store_helper")

if __name__ == "__main__":
    sys.exit(main(rejection_reason, helper_command=HELPER_COMMAND))
