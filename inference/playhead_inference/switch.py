"""Hold whether the patch is on in this process. Only the positive control turns it off."""

from dataclasses import dataclass, field
from typing import Final

BLOCK: Final = 256
"""Maximum rows that matmuls, experts and activation functions compute at once. Longer batches are computed in pieces."""


@dataclass(slots=True)
class Seen:
    """The batches that the patched attention has computed, which are those that were checked."""

    batches: int = 0
    largest: int = 0
    longest: int = 0
    sizes: set[int] = field(default_factory=set)
    """The numbers of requests in a batch."""


@dataclass(slots=True)
class Switch:
    """The state of the patch in one process."""

    on: bool = True
    seen: Seen = field(default_factory=Seen)

    def note_batch(self, longest: int, requests: int) -> None:
        """Count a batch of this many requests, the longest of which has `longest` queries."""
        self.seen.batches += 1
        self.seen.largest = max(self.seen.largest, requests)
        self.seen.sizes.add(requests)
        self.seen.longest = max(self.seen.longest, longest)


SWITCH = Switch()
