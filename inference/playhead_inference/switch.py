"""Whether this process's attention is ours. Only the positive control turns it off, and only for itself."""

from dataclasses import dataclass, field
from typing import Final

BLOCK: Final = 256
"""Rows up to which matmuls, experts and activation functions are computed at once. A longer batch is computed in pieces."""


@dataclass(slots=True)
class Seen:
    """What the patched attention has met: what was not met was not checked."""

    batches: int = 0
    largest: int = 0
    longest: int = 0
    sizes: set[int] = field(default_factory=set)
    """Numbers of requests in a batch."""


@dataclass(slots=True)
class Switch:
    """One per process."""

    on: bool = True
    seen: Seen = field(default_factory=Seen)

    def saw(self, longest: int, requests: int) -> None:
        """A batch of so many requests, the longest of so many queries."""
        self.seen.batches += 1
        self.seen.largest = max(self.seen.largest, requests)
        self.seen.sizes.add(requests)
        self.seen.longest = max(self.seen.longest, longest)


SWITCH = Switch()
