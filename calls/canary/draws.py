"""Choose which pinned calls are asked next.

After the references each call is drawn at random from all of them, so that the answers are one series with one rate, however much the
calls differ from one another.
"""

import hashlib
from collections.abc import Sequence

from calls.canary.canary_state import CanaryState


def draw_pins(pins: Sequence[str], state: CanaryState, count: int, seed: str) -> list[str]:
    """Return the calls to ask, in this order: first for references that are missing, then at random."""
    rounds = range(max((state.missing_references(pin) for pin in pins), default=0))
    lacking = [pin for turn in rounds for pin in pins if turn < state.missing_references(pin)][:count]
    return [*lacking, *(pins[_number(seed, place) % len(pins)] for place in range(count - len(lacking)))]


def _number(seed: str, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{place}".encode()).digest()[:8])
