"""`playhead up` as a user runs it: a process of its own, with its ready line read from stdout."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.api import authorization, ready_words

READY = re.compile(r"ready proxy=\S+ api=\S+ ca=\S+ token=\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running `playhead up`."""

    proxy: str
    api: str
    ca: Path
    process: asyncio.subprocess.Process

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that the API requires."""
        return authorization(self.api)

    @property
    def proxy_port(self) -> int:
        """The worker's port."""
        return urlsplit(self.proxy).port or 0


@asynccontextmanager
async def running(data: Path, *flags: str, config: str = "") -> AsyncIterator[Service]:
    """Start `playhead up` on free ports; stop it with SIGTERM and require a clean exit. `tests/drills/test_stopping.py`
    tests that this takes 10 s at most.

    Pass `--database-url` unless the test is about Postgres: starting one takes seconds.
    """
    file = data.with_suffix(".toml")
    file.write_text(config)
    async with _up(data, "--config", str(file), "--proxy-port", "0", *flags) as (process, line):
        assert READY.match(line), f"not ready: {line!r}, exit status {process.returncode}"
        words = ready_words(line)
        yield Service(proxy=words["proxy"], api=words["api"], ca=Path(words["ca"]), process=process)


@asynccontextmanager
async def keeping(data: Path, database_url: str = "", user: Sequence[str] = ()) -> AsyncIterator[None]:
    """Run a store server without a worker. Commands on this data directory share it, where each would start and stop
    one of its own.

    `user` is a prefix of its command line. Without a URL it has a Postgres of its own.
    """
    flags = ("--database-url", database_url) if database_url else ()
    async with _up(data, "--part", "store", *flags, user=user) as (process, line):
        assert line.startswith("ready api="), f"not ready: {line!r}, exit status {process.returncode}"
        yield


@asynccontextmanager
async def _up(
    data: Path, *flags: str, user: Sequence[str] = ()
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Yield the process and its ready line."""
    process = await asyncio.create_subprocess_exec(
        *user,
        *command("up", "--data", str(data), "--api-port", "0", *flags),
        stdout=asyncio.subprocess.PIPE,
        env=surroundings(),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        yield process, line
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            code = await process.wait()
    assert code == 0, f"playhead up ended with {code}"


def surroundings() -> dict[str, str]:
    """Return this environment without variables that affect Playhead, except the engine under test (`--engine`)."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PLAYHEAD_") or name in ("PLAYHEAD_ENGINE", "PLAYHEAD_STORE_IDLE")
    }


def command(*arguments: str) -> list[str]:
    """Return the command line of this checkout's Playhead."""
    return [str(Path(sys.executable).parent / "playhead"), *arguments]
