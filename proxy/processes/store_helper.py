"""Run a helper process of the store server with the check of replay options: `python -m proxy.processes.store_helper`."""

from replay.replay_options import rejection_reason
from store.large.worker import main

if __name__ == "__main__":
    main(rejection_reason)
