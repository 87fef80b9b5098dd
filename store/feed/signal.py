"""Tell waiting readers in this process that something was committed. In other processes, `feed_watch` notices it."""

import asyncio
import time
from typing import Final

MOST_PROJECTS: Final = 1000
"""Projects that are told apart."""


READ_FOR: Final = 5.0
"""Seconds for which a client that has asked the API is taken to ask again."""


class FeedSignal:
    """Wakes all readers at once."""

    def __init__(self) -> None:
        self._committed = asyncio.Event()
        self.sends = 0
        """How often it was sent."""

        self._sent_for_all = 0
        self._sent_for: dict[str, int] = {}
        """When it was last sent for all projects, and for one of them, as numbers of sends."""

        self.streams = 0
        """How many clients are sent the feed at present."""

        self._asked_at = -READ_FOR
        self.is_closed = False
        """Whether the store server stops: who reads the feed for a client ends."""

    def note_request(self) -> None:
        """Note that a client has asked the API for what is stored."""
        self._asked_at = time.monotonic()

    def is_read(self) -> bool:
        """Return whether a client is sent the feed, or has asked the API a moment ago."""
        return self.streams > 0 or time.monotonic() - self._asked_at < READ_FOR

    def close(self) -> None:
        """Wake everyone who waits, for the last time."""
        self.is_closed = True
        self.send()

    def send(self, project: str | None = None) -> None:
        """Wake everyone who waits. With a project, only there was something committed."""
        self.sends += 1
        if project is None or len(self._sent_for) >= MOST_PROJECTS:
            self._sent_for_all = self.sends
            self._sent_for.clear()
        else:
            self._sent_for[project] = self.sends
        self._committed.set()
        self._committed = asyncio.Event()

    def changed_since(self, sends: int) -> set[str] | None:
        """Return the projects in which something was committed since there were so many sends; None for any of them."""
        if self._sent_for_all > sends:
            return None
        return {project for project, last_send in self._sent_for.items() if last_send > sends}

    async def wait(self, seconds: float) -> None:
        """Wait for the next `send`, for this many seconds at most."""
        if self.is_closed:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._committed.wait()
        except TimeoutError:
            pass
