"""A request to a replay, and what a miss of it says about its replay."""

import asyncio
from collections.abc import Callable

import msgspec

from calls.model import Request

_HEAVY = 256 << 10
"""Bodies with more bytes than this are parsed on a thread, so that other requests need not wait."""

_MAX_URL = 200
_RECORD_AGAIN = "record the run again: playhead record -- CMD"


class RepairAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Fixes to suggest when the replay was not started by `playhead replay`."""

    record_again: str = _RECORD_AGAIN
    record_new: str | None = None
    is_shared: bool = False
    """True if other tests use the recording as well: recording it again might lose their calls, so `record_new` comes first."""


class IncomingRequest(msgspec.Struct, kw_only=True):  # not frozen: see replay/answer.py
    """A request to a replay."""

    request: Request
    number: int
    """The place among the requests of the replay, from 1."""

    replay: str
    run: str
    actor: str | None = None
    recording_name: str | None = None
    """The recording as named by whoever started the replay: a run, or the path of a bundle."""

    goes_live: bool = False
    """True if the request goes live when it was not recorded."""

    repair_advice: RepairAdvice | None = None
    fork_step: int | None = None
    """The last step that a fork should answer from the record, if an earlier answer of this replay was edited."""

    page: str | None = None
    """The address of the web page about the misses of this replay."""

    @property
    def miss_page(self) -> str | None:
        """The address of the web page about the miss of this request."""
        return self.page and f"{self.page}{'&' if '?' in self.page else '?'}request={self.number}"

    @property
    def record_again(self) -> str:
        """The suggestion to record the run again."""
        return self.repair_advice.record_again if self.repair_advice else _RECORD_AGAIN

    @property
    def description(self) -> str:
        """Method and URL, short enough for a sentence."""
        url = self.request.url
        return f"{self.request.method} {url if len(url) <= _MAX_URL else url[:_MAX_URL] + '…'}"

    async def run_off_loop[T](self, work: Callable[[], T]) -> T:
        """Do work on the request: on a thread if its body is large, and directly otherwise."""
        return await asyncio.to_thread(work) if len(self.request.body.data) > _HEAVY else work()
