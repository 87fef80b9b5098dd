"""The keeper as a process: `python -m store`.

Told by one JSON line on stdin what to do, it says on stdout that it is ready, or in one sentence why it cannot be; it stops
cleanly on SIGTERM, or when stdin ends because whoever started it is gone.
"""

import asyncio
import contextlib
import datetime as dt
import fcntl
import importlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import msgspec

from calls.profile import BadProfile
from calls.redact import Redactor
from store.api.app import create
from store.api.desk import Desk, Unfit
from store.api.guard import is_loopback
from store.api.server import serving
from store.database import Database, DatabaseError, address
from store.datadir import DataDir, DataDirError, opened
from store.derived import deriver
from store.ingest import Ingest
from store.keeper import Keeper
from store.modes import Modes
from store.postgres import NoPostgres, Server, ensure
from store.profiles import shipped
from store.takes import Takes

FAILED = 125

LAST_LOOK = 3.0
"""Seconds that a stopping keeper gives to what has just ended."""


class Config(msgspec.Struct, frozen=True):
    """What we are told. Sizes are bytes, times nanoseconds since the Unix epoch."""

    data: str
    database_url: str | None = None
    listen: str = "127.0.0.1"
    port: int = 0
    mode: str = "record"
    profiles_toml: str | None = None
    tokens: tuple[str, ...] = ()
    started: int = 0
    checks: str | None = None
    """Who tells whether a recording can be edited or forked as it is wished for: MODULE:FUNCTION of a room above ours."""


class CannotStart(Exception):
    """The keeper cannot be started; the message says why and what to do."""


def main() -> int:
    """Run until stopped; the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = msgspec.json.decode(sys.stdin.buffer.readline(), type=Config)
        with _port(config) as port:
            asyncio.run(_keep(config, port))
    except (CannotStart, BadProfile, DataDirError, DatabaseError, NoPostgres) as error:
        _say({"failed": str(error)})
        return FAILED
    except msgspec.ValidationError as error:
        _say({"failed": f"the keeper was told something it does not understand: {error}"})
        return FAILED
    return 0


async def _keep(config: Config, port: socket.socket) -> None:
    stopped = asyncio.Event()
    await _until_told(stopped)
    data = opened(Path(config.data))
    profiles = shipped(config.profiles_toml)
    with _alone(data):
        async with _database(config, data) as (database, server):
            ingest = Ingest(database, profile=profiles.digest)
            await ingest.ahead(dt.datetime.now(dt.UTC).date())
            clean = Redactor(key=data.redaction_key()).text
            revive = server.revive if server else None
            derive = deriver(profiles, clean)
            keeper = Keeper(data.spools, ingest, derive, revive=revive)
            takes = Takes(
                place=data.replays,
                database=database,
                ingest=Ingest(database, profile=profiles.digest),
                derive=derive,
                settled=keeper.settled,
                now=time.time_ns,
            )
            desk = Desk(
                keeper=keeper,
                database=database,
                profiles=profiles,
                clean=clean,
                mode=config.mode,
                takes=takes,
                modes=Modes(data.replays),
                unfit=_named(config.checks),
            )
            async with asyncio.TaskGroup() as group:
                kept, looking = group.create_task(keeper.run()), group.create_task(takes.run())
                async with serving(create(desk, config.tokens), port):
                    _say({"ready": True, "port": port.getsockname()[1]})
                    await stopped.wait()
                looking.cancel()
                await _last_look(takes)
                keeper.stop()
                await kept


def _named(function: str | None) -> Unfit | None:
    if function is None:
        return None
    module, _, name = function.partition(":")
    found: Unfit = getattr(importlib.import_module(module), name)
    return found


async def _last_look(takes: Takes) -> None:
    """Doors are stopped before us, and their takes have ended with them. What takes longer is done by the next keeper."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_LOOK):
            await takes.look()


@contextlib.asynccontextmanager
async def _database(config: Config, data: DataDir) -> AsyncIterator[tuple[Database, Server | None]]:
    """The database that we were given, or one of our own."""
    server = None if config.database_url else await asyncio.to_thread(ensure, data.postgres)
    database = Database(config.database_url or (server.dsn if server else ""))
    try:
        await _prepared(database, config.database_url)
        yield database, server
    finally:
        await database.close()
        if server is not None:
            await asyncio.to_thread(server.close)


async def _prepared(database: Database, url: str | None) -> None:
    try:
        await database.prepare()
    except DatabaseError as error:
        if url is None:
            raise
        raise CannotStart(
            f"cannot use the database {address(url)} ({str(error).rstrip('.')});"
            " see that it runs and lets us in, or correct --database-url"
        ) from error


@contextlib.contextmanager
def _alone(data: DataDir) -> Iterator[None]:
    """Hold the data directory against a second keeper. The kernel lets go of it even when we are killed."""
    handle = os.open(data.root / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"another keeper runs on {data.root}; stop that `playhead`, or use another directory with --data DIR"
            ) from error
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _port(config: Config) -> Iterator[socket.socket]:
    """The socket that the API listens on."""
    if not config.tokens and not is_loopback(config.listen):
        raise CannotStart(f"listening on {config.listen} lets other machines in: set a token (PLAYHEAD_TOKEN) first")
    family = socket.AF_INET6 if ":" in config.listen else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            port.bind((config.listen, config.port))
        except OSError as error:
            raise CannotStart(
                f"the API cannot listen on {config.listen}:{config.port}: {error.strerror};"
                " choose another port with --api-port (0 takes a free one)"
            ) from error
        yield port


async def _until_told(stopped: asyncio.Event) -> None:
    """Have SIGTERM, SIGINT and the end of stdin set the event."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await loop.connect_read_pipe(partial(_Ending, stopped), sys.stdin)


class _Ending(asyncio.Protocol):
    """Sets an event when what it reads has ended."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, _: Exception | None) -> None:
        self._ended.set()


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
