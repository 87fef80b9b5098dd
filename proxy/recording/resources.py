"""What the recordings of a worker share: the redactor, the spool, memory for bodies that are held, and a thread."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from calls.redaction.body import Piece
from calls.redaction.redactor import Redactor
from proxy.recording.spool_outbox import SpoolOutbox

type Policy = Literal["gap", "refuse"]
"""What happens to a request that cannot be recorded: `gap` forwards it and records a gap, `refuse` refuses it."""


class RecordingResources:
    """What the recordings of one worker share. To be used on one event loop's thread only."""

    def __init__(
        self, redactor: Redactor, outbox: SpoolOutbox, *, body_limit: int, held_limit: int, on_failure: Policy
    ) -> None:
        """`held_limit`: the bytes of bodies that may be held in memory at a time."""
        self.redactor = redactor
        self.outbox = outbox
        self.body_limit = body_limit
        self.on_failure: Policy = on_failure
        self.counts: Counter[str] = Counter()
        """The number of exchanges by outcome."""

        self.clean_reason = ""
        """The last reason of a response in which no secret was found, mostly that of the next one too."""

        self._free_memory = held_limit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redact")

    def reserve_memory(self, size: int) -> bool:
        """Reserve memory for a piece of a body that has to be held. Return False if there is not enough."""
        if size > self._free_memory:
            return False
        self._free_memory -= size
        return True

    def release_memory(self, size: int) -> None:
        """Return reserved memory."""
        self._free_memory += size

    def run_on_thread(self, redact: Callable[[], list[Piece]]) -> "Future[list[Piece]]":
        """Redact a body, or a part of it, on the thread."""
        return self._thread.submit(redact)
