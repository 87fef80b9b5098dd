"""Tell waiting readers in this process that something was committed. In other processes, `feed_watch` notices it."""

import asyncio


class FeedSignal:
    """Wakes all readers at once."""

    def __init__(self) -> None:
        self._committed = asyncio.Event()
        self.sends = 0
        """How often it was sent."""

        self.streams = 0
        """How many clients are sent the feed at present."""

        self.is_closed = False
        """Whether the store server stops: who reads the feed for a client ends."""

    def close(self) -> None:
        """Wake everyone who waits, for the last time."""
        self.is_closed = True
        self.send()

    def send(self) -> None:
        """Wake everyone who waits."""
        self.sends += 1
        self._committed.set()
        self._committed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for the next `send`, for this many seconds at most."""
        if self.is_closed:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._committed.wait()
        except TimeoutError:
            pass
