"""Note in a run what passed without being recorded: each destination once when it is over, with its bytes."""

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.capture.report import ConnectionReport, Kind

NOTED_AFTER: Final = 1.0
"""Seconds after the end of a first connection: others to the same destination mostly follow it at once."""

NOTED_WHILE_OPEN: Final = 10.0
"""Seconds after which a connection that is still open is noted all the same: a killed worker notes nothing more."""

type Counts = tuple[int, int, int]


class PassedNotes:
    """Notes the connections of one capture that pass as they are."""

    def __init__(self, report: ConnectionReport, note: Callable[[str], None]) -> None:
        self._report = report
        self._note = note
        self._noted: dict[Kind, Counts] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def began(self, kind: Kind) -> None:
        """One more connection of this kind is open."""
        if kind not in self._noted:
            self._plan(NOTED_WHILE_OPEN)

    def ended(self) -> None:
        """A connection is over."""
        if self._has_ended:
            self._note_all()
        elif any(kind not in self._noted for kind, _ in self._report.passed()):
            self._plan(NOTED_AFTER)

    def end(self) -> None:
        """The capture is over: note what has changed."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._note_all()

    def _plan(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._note_new)

    def _note_new(self) -> None:
        self._timer = None
        self._note_all(is_last=False)

    def _note_all(self, *, is_last: bool = True) -> None:
        for kind, entry in self._report.passed():
            counts = entry.sent, entry.received, entry.count
            noted = self._noted.get(kind)
            if noted == counts or (noted is not None and not is_last):
                continue
            self._noted[kind] = counts
            in_all = "" if noted is None else "in all "
            many = f"{entry.count:,} connections" if entry.count > 1 else "1 connection"
            self._note(
                f"{kind.described()} passed without being recorded, for {kind.reason}: {in_all}{many},"
                f" {entry.sent:,} bytes sent and {entry.received:,} received"
            )
