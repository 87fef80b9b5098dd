"""Ask, for `up --part proxy`, after the store server that runs elsewhere, and report what keeps it from its work."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from proxy.processes.store_client import Api

# As `store.database.wait` has them for the store server. To import them from there would import SQLAlchemy, 0.35 s of CPU.
RETRY_PAUSES = (0.1, 2.0)
"""Seconds between two attempts to reach a store server: at first, and at most."""

REPEAT_EVERY = 30.0
"""Seconds after which the same obstacle is reported again to who waits for its end."""

LOOK_EVERY = 15.0
"""Seconds between two looks at a store server that nobody waits for."""

PATIENCE = 10.0
"""Seconds that a store server may be away before it is reported: it may start at the same time as the workers, or anew."""

_REMIND_EVERY: Final = 600.0
"""Seconds after which the same obstacle is reported again while the workers record."""


class StoreElsewhere:
    """A store server that another `up` runs."""

    def __init__(self, api: Api, say: Callable[[str], None]) -> None:
        self._api = api
        self._say = say
        self._last = ""
        self._reported_at = 0.0

    async def wait(self, prepared: asyncio.Event) -> None:
        """Wait, however long it takes, until runs can be fetched from it. Then set `prepared`."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pause, longest = RETRY_PAUSES
        while (obstacle := await asyncio.to_thread(self._api.fetch_obstacle)) is not None:
            if self._is_news(obstacle, REPEAT_EVERY):
                self._say(
                    f"waiting for the store server at {self._api.url}, which has the runs of --replay: {obstacle}"
                    " It is tried again until it answers."
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
        if self._last:
            self._say(f"the store server at {self._api.url} is ready, after {loop.time() - began:.0f} s")
        prepared.set()

    async def watch(self, spools: Path, spool_limit: int) -> None:
        """Report, until cancelled, why it stores nothing of what the workers record, and when it does again."""
        loop = asyncio.get_running_loop()
        since: float | None = None
        while True:
            obstacle = await asyncio.to_thread(self._api.fetch_obstacle)
            if obstacle is None:
                if self._last:
                    self._say(f"the store server at {self._api.url} stores what is recorded again")
                since, self._last = None, ""
            else:
                since = loop.time() if since is None else since
                if loop.time() - since >= PATIENCE and self._is_news(obstacle, _REMIND_EVERY):
                    self._say(
                        f"what is recorded is not stored at the moment: {obstacle}"
                        f" It waits in {spools}, up to {spool_limit:,} bytes (spool_limit)."
                    )
            await asyncio.sleep(LOOK_EVERY if obstacle is None or self._last else RETRY_PAUSES[1])

    def _is_news(self, obstacle: str, repeat_every: float) -> bool:
        """Whether an obstacle is to be reported: a new one, or the same after a while."""
        now = asyncio.get_running_loop().time()
        if obstacle == self._last and now - self._reported_at < repeat_every:
            return False
        self._last, self._reported_at = obstacle, now
        return True
