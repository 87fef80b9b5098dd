"""Run exactly as many threads as configured, or raise, because the order of addition depends on their number."""

import os


def asked_threads() -> int | None:
    """The number of threads in OMP_NUM_THREADS; None if it is not set."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else None


def set_threads() -> None:
    """Set the number of threads, because torch silently limits OMP_NUM_THREADS to the number of CPUs. Safe to call twice."""
    import torch

    asked = asked_threads()
    if asked is None or torch.get_num_threads() == asked:
        return
    torch.set_num_threads(asked)
    if torch.get_num_threads() != asked:
        raise RuntimeError(
            f"OMP_NUM_THREADS asks for {asked} threads, and torch runs only {torch.get_num_threads()}: set it to what torch runs"
        )
