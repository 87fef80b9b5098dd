"""Tell waiting readers in this process that something was committed. Readers in other processes look once in a while."""

import asyncio


class FeedSignal:
    """Wakes all readers at once."""

    def __init__(self) -> None:
        self._committed = asyncio.Event()

    def send(self) -> None:
        """Wake everyone who waits."""
        self._committed.set()
        self._committed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for the next `send`, for this many seconds at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._committed.wait()
        except TimeoutError:
            pass
