"""What the recordings of one worker share: redaction, memory, ids, the spool.

What becomes of one of them is in `recording`.
"""

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final

from calls.events import RequestStarted
from calls.model import Headers
from calls.redaction.body import BodyRedactor, Piece
from calls.redaction.redactor import Redactor
from proxy.recording.exchange_recording import Policy, Recording
from proxy.recording.spool_outbox import Journal, SpoolOutbox
from proxy.uuid7 import Uuid7

BODY_LIMIT: Final = 32 << 20
HELD_LIMIT: Final = 256 << 20
WHOSE: Final = 256
"""How many names of runs are kept in mind, with how they are known."""

RUNS_TIMED: Final = 4096
"""Of how many runs the time of the last exchange is remembered."""

type Evidence = tuple[tuple[str, str], ...]


class Recorder:
    """The recorder of one worker, for one event loop's thread."""

    def __init__(
        self,
        spool: Journal,
        redactor: Redactor,
        *,
        body_limit: int = BODY_LIMIT,
        held_limit: int = HELD_LIMIT,
        on_failure: Policy = "gap",
        now: Callable[[], int],
        randbits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self.spool = spool
        self.soon = spool.soon
        """Have something done in a moment: what it tells is kept with what is told now."""

        self.redactor = redactor
        self.body_limit = body_limit
        self.on_failure: Policy = on_failure
        self.ledger = SpoolOutbox(spool, now)
        self._now = now
        self._latest: OrderedDict[str, int] = OrderedDict()
        """When the last exchange of a run began. Later ones of it are later, whatever the clock does: their order is that of
        these times."""

        self.counts: Counter[str] = Counter()
        """How exchanges have ended."""

        self._new_id = Uuid7(now, randbits)
        self._room = held_limit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="redact")
        self._working: set[Recording] = set()
        self._whose = lru_cache(WHOSE)(self._whose_new)

    def begin(
        self,
        *,
        run: str,
        run_evidence: Evidence = (),
        step: int | None = None,
        actor: str | None = None,
        method: str,
        url: str,
        http_version: str,
        headers: Headers,
        gathers: bool = False,
    ) -> Recording:
        """A request's head has arrived. `gathers`: nothing of the request goes on before it is whole, and nothing needs to be
        kept of it before that."""
        run, evidence, actor = self._whose(self.called(run, url), run_evidence, actor)
        started_at = self._next_time(run)
        head = self.redactor.head(method, url, headers)
        self.ledger.check(run)
        name = self._new_id()
        told = evidence, step, actor, head.redactions
        started = RequestStarted(name, run, started_at, method, head.url, http_version, head.headers, *told)
        recording = Recording(self, started, head)
        if not gathers:
            recording.tell()
        return recording

    def _next_time(self, run: str) -> int:
        """Now, or just after the last exchange of the run where the clock has been set back since."""
        latest = self._latest
        started_at = latest[run] = max(self._now(), latest.get(run, 0) + 1)
        latest.move_to_end(run)
        if len(latest) > RUNS_TIMED:
            latest.popitem(last=False)
        return started_at

    def called(self, run: str, _url: str | None) -> str:
        """The run in which something of this one is recorded."""
        return run

    def _whose_new(self, run: str, evidence: Evidence, actor: str | None) -> tuple[str, Evidence, str | None]:
        """Whose it is, redacted. A client mostly says the same, and so it is found out once."""
        text = self.redactor.text
        return text(run), tuple((source, text(value)) for source, value in evidence), actor and text(actor)

    def gap(self, run: str, reason: str, exchange: str | None = None) -> None:
        """Something passes that is not recorded."""
        self.ledger.gap(self.redactor.text(self.called(run, None)), self.redactor.text(reason), exchange)

    async def settled(self) -> None:
        """Wait until no body is being worked on, and offer what is owed once more: call it before the spool is closed."""
        while self._working:
            await asyncio.gather(*(recording.settled() for recording in list(self._working)))
        self.ledger.settle()

    # -- for recordings

    def hold(self, size: int) -> bool:
        """Take room for a piece of a body that has to be held, if there is any."""
        if size > self._room:
            return False
        self._room -= size
        return True

    def release(self, size: int) -> None:
        """Give it back."""
        self._room += size

    def work(self, body: BodyRedactor) -> "Future[list[Piece]]":
        """Finish a body on the thread."""
        return self._pool.submit(body.finish)

    def busy(self, recording: Recording) -> None:
        """A body of this recording is being worked on."""
        self._working.add(recording)

    def free(self, recording: Recording) -> None:
        """None is any more."""
        self._working.discard(recording)
