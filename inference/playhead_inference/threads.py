"""Run as many threads as were asked for, or say why not. The order of addition depends on their number."""

import os


def asked_threads() -> int | None:
    """How many threads OMP_NUM_THREADS asks for; None where it asks for none."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else None


def set_threads() -> None:
    """torch takes no more threads from OMP_NUM_THREADS than there are CPUs, without a word: set them. Safe to call twice."""
    import torch

    asked = asked_threads()
    if asked is None or torch.get_num_threads() == asked:
        return
    torch.set_num_threads(asked)
    if torch.get_num_threads() != asked:
        raise RuntimeError(f"OMP_NUM_THREADS asks for {asked} threads and torch runs {torch.get_num_threads()}")
