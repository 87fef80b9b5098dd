"""Note in a run which connections passed without being recorded: each destination once, with its bytes.

A destination to which no byte passed is not noted, because nothing was left unrecorded. Browsers and Node's `fetch` open
connections in advance, and close those that they do not need.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.capture.report import ConnectionKind, ConnectionReport

NOTE_DELAY: Final = 1.0
"""Seconds from the end of a connection to its note. Others to the same destination often follow at once."""

OPEN_NOTE_DELAY: Final = 10.0
"""Seconds after which an open connection is noted, in case the worker is killed."""

type Counts = tuple[int, int, int]


class PassedNotes:
    """Notes the connections of one capture that pass undecoded."""

    def __init__(self, report: ConnectionReport, note: Callable[[str], None]) -> None:
        self._report = report
        self._note = note
        self._noted_counts: dict[ConnectionKind, Counts] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def add_connection(self, kind: ConnectionKind) -> None:
        """Plan the note of a new connection of this kind."""
        if kind not in self._noted_counts:
            self._schedule(OPEN_NOTE_DELAY)

    def end_connection(self) -> None:
        """Plan the note of a connection that has ended."""
        if self._has_ended:
            self._note_all()
        elif any(kind not in self._noted_counts for kind, _ in self._report.passed_entries()):
            self._schedule(NOTE_DELAY)

    def end(self) -> None:
        """Note what has changed, because the capture ends."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._note_all()

    def _schedule(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._note_new)

    def _note_new(self) -> None:
        self._timer = None
        self._note_all(is_last=False)
        if self._report.has_silent_entries():
            # Bytes may pass later.
            self._schedule(OPEN_NOTE_DELAY)

    def _note_all(self, *, is_last: bool = True) -> None:
        for kind, entry in self._report.passed_entries():
            counts = entry.sent, entry.received, entry.count
            noted = self._noted_counts.get(kind)
            if noted == counts or (noted is not None and not is_last):
                continue
            self._noted_counts[kind] = counts
            in_all = "" if noted is None else "in all "
            many = f"{entry.count:,} connections" if entry.count > 1 else "1 connection"
            self._note(
                f"{kind.describe()} passed without being recorded, for {kind.reason}: {in_all}{many},"
                f" {entry.sent:,} bytes sent and {entry.received:,} received"
            )
