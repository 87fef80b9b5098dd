"""Run a helper process of the store server with the check of replay options: `python -m proxy.processes.store_helper`."""

import gc

from proxy.processes.store_server import rejection_reason


def main() -> None:
    """Run jobs until stdin ends."""
    gc.disable()  # as in the store server
    from store.large.worker import main as run_jobs

    gc.freeze()
    gc.enable()
    run_jobs(rejection_reason)


if __name__ == "__main__":
    main()
