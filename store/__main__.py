"""The process of the store server: `python -m store`.

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
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from calls.keys.profile import BadProfile
from calls.redaction.redactor import Redactor
from store.active_profiles import shipped
from store.api.app import create
from store.api.deps import Deps, Unfit
from store.api.guard import is_loopback
from store.api.server import serving
from store.database.connection import Database, DatabaseError, address
from store.database.wait import wait_until_prepared
from store.datadir import DataDir, DataDirError, opened
from store.embedded.postgres import NoPostgres, Server, ensure
from store.generations.auto_sessions import AutoSessionRuns
from store.ingest.batch_writer import Ingest
from store.ingest.derive_call import deriver
from store.ingest.ingester import Ingester
from store.large.helper import Helper
from store.large.jobs import WorkerConfig
from store.large.memory import return_freed_blocks
from store.run_modes import Modes
from store.run_tokens import is_claimed
from store.server_config import StoreServerConfig

log = logging.getLogger(__name__)

FAILED = 125

FIRST_TRY = 5.0
"""Seconds after which we serve while the database has said nothing yet: a probe of our liveness must not wait for it."""

LINGER = 0.2
"""Seconds between two looks at whether another command still uses us."""

LAST_LOOK = 3.0
"""Seconds that a stopping store server gives to what has just ended."""


class CannotStart(Exception):
    """The store server cannot be started; the message says why and what to do."""


def main() -> int:
    """Run until stopped; the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return_freed_blocks()
    try:
        config = msgspec.json.decode(sys.stdin.buffer.readline(), type=StoreServerConfig)
        with _port(config) as port:
            asyncio.run(_keep(config, port))
    except (CannotStart, BadProfile, DataDirError, DatabaseError, NoPostgres) as error:
        _say({"failed": str(error)})
        return FAILED
    except msgspec.ValidationError as error:
        _say({"failed": f"the store server was told something it does not understand: {error}"})
        return FAILED
    return 0


async def _keep(config: StoreServerConfig, port: socket.socket) -> None:
    stopped, abandoned = asyncio.Event(), asyncio.Event()
    await _until_told(stopped, abandoned if config.temporary else stopped)
    data = opened(Path(config.data))
    profiles = shipped(config.profiles_toml)
    with _alone(data):
        async with _database(config, data) as (database, server):
            ingest = Ingest(database, profile=profiles.digest)
            clean = Redactor(
                key=data.redaction_key(),
                personal_data=config.redact_personal_data,
                names=config.redact_names,
            ).text
            revive = server.revive if server else None
            derive = deriver(profiles, clean)
            storing, rendering, judging = _helpers(config, data, database)
            store_server = Ingester(
                data.spools, ingest, derive, large=storing, revive=revive, is_claimed=_claims(config, data)
            )
            takes = AutoSessionRuns(
                place=data.replays,
                database=database,
                ingest=Ingest(database, profile=profiles.digest),
                derive=derive,
                settled=store_server.settled,
                now=time.time_ns,
                helper=judging,
            )
            desk = Deps(
                store_server=store_server,
                database=database,
                profiles=profiles,
                clean=clean,
                mode=config.mode,
                takes=takes,
                modes=Modes(data.replays),
                run_tokens=data.run_tokens(),
                unfit=_named(config.checks),
                helper=rendering,
                spilled=_emptied(data.root / "answers"),
                keys=data.keys,
            )
            progress, prepare = _Progress(), partial(_prepare, database, ingest)
            if not config.may_wait:
                await _prepare_now(prepare, config.database_url)
            async with asyncio.TaskGroup() as group:
                preparing = group.create_task(_wait(prepare, database, progress))
                lingering = group.create_task(_linger(data, abandoned, stopped))
                kept, looking = group.create_task(store_server.run()), group.create_task(takes.run())
                async with serving(create(desk, _tokens(config, data), data.api_token_file), port):
                    await progress.first_try()
                    progress.begin({"ready": True, "port": port.getsockname()[1]})
                    await stopped.wait()
                lingering.cancel()
                preparing.cancel()
                looking.cancel()
                await _last_look(takes)
                store_server.stop()
                await kept
                await rendering.close()
                await judging.close()


async def _prepare(database: Database, ingest: Ingest) -> None:
    """Bring the tables to our version, and make room in them for the days to come."""
    await database.prepare()
    await ingest.ahead(dt.datetime.now(dt.UTC).date())


async def _prepare_now(prepare: Callable[[], Awaitable[None]], url: str | None) -> None:
    try:
        await prepare()
    except DatabaseError as error:
        if url is None:
            raise
        raise CannotStart(
            f"cannot use the database {address(url)} ({str(error).rstrip('.')});"
            " see that it runs and lets us in, or correct --database-url"
        ) from error


async def _wait(prepare: Callable[[], Awaitable[None]], database: Database, progress: "_Progress") -> None:
    await wait_until_prepared(prepare, database, progress.report)
    progress.finish()


class _Progress:
    """What we say on stdout about preparing the database: with the line that we are ready, and from then on."""

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self._words: str | None = None
        self._begun = False
        self._prepared = False

    def report(self, words: str) -> None:
        """Say what is in the way, or that it no longer is."""
        log.info("%s", words)
        self._words = words
        self._first.set()
        if self._begun:
            _say({"progress": words})

    def finish(self) -> None:
        """Say that the database is prepared."""
        self._prepared = True
        self._first.set()
        if self._begun:
            _say({"prepared": True})

    async def first_try(self) -> None:
        """Wait until the database is prepared or something is in the way, for `FIRST_TRY` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_TRY):
                await self._first.wait()

    def begin(self, ready: Mapping[str, object]) -> None:
        """Say that we are ready to be asked, and whether the database is."""
        self._begun = True
        words = self._words or "waiting for the database: it does not answer yet, or its tables are being upgraded"
        _say({**ready, "prepared": self._prepared} | ({} if self._prepared else {"progress": words}))


def _claims(config: StoreServerConfig, data: DataDir) -> Callable[[str], bool]:
    return (lambda _run: False) if config.shared_runs else partial(is_claimed, data.claims)


def _tokens(config: StoreServerConfig, data: DataDir) -> tuple[str, ...]:
    return () if config.open_api else (data.api_token(), *config.tokens)


def _named(function: str | None) -> Unfit | None:
    if function is None:
        return None
    module, _, name = function.partition(":")
    found: Unfit = getattr(importlib.import_module(module), name)
    return found


def _helpers(config: StoreServerConfig, data: DataDir, database: Database) -> tuple[Helper, Helper, Helper]:
    """The processes for what is too large for this one: to store it, to read it, and to make generations of it."""
    worker = WorkerConfig(
        database_url=database.url,
        redaction_key=data.redaction_key(),
        memory_limit=config.helper_memory,
        mode=config.mode,
        replays=str(data.replays),
        profiles_toml=config.profiles_toml,
        redact_personal_data=config.redact_personal_data,
        redact_names=config.redact_names,
        claims=None if config.shared_runs else str(data.claims),
        checks=config.checks,
    )
    return Helper(worker), Helper(worker), Helper(worker)


def _emptied(place: Path) -> Path:
    """A directory for answers that wait to be read; what an earlier process left there is nobody's."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    return place


async def _last_look(takes: AutoSessionRuns) -> None:
    """Workers are stopped before us, and their takes have ended with them. What takes longer is done by the next store server."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_LOOK):
            await takes.look()


@contextlib.asynccontextmanager
async def _database(config: StoreServerConfig, data: DataDir) -> AsyncIterator[tuple[Database, Server | None]]:
    """The database that we were given, or one of our own."""
    server = None if config.database_url else await asyncio.to_thread(ensure, data.postgres)
    database = Database(config.database_url or (server.dsn if server else ""))
    try:
        yield database, server
    finally:
        await database.close()
        if server is not None:
            await asyncio.to_thread(server.close)


@contextlib.contextmanager
def _alone(data: DataDir) -> Iterator[None]:
    """Hold the data directory against a second store server. The kernel lets go of it even when we are killed."""
    handle = os.open(data.root / "store.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"another store server runs on {data.root}; stop that `playhead`, or use another directory with --data DIR"
            ) from error
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _port(config: StoreServerConfig) -> Iterator[socket.socket]:
    """The socket that the API listens on."""
    if config.open_api and not is_loopback(config.listen):
        raise CannotStart(f"the API would be open to other machines on {config.listen}: leave out open_api")
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


async def _until_told(stopped: asyncio.Event, abandoned: asyncio.Event) -> None:
    """Have SIGTERM, SIGINT and the word on stdin set one event, and the end of stdin without that word the other."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await loop.connect_read_pipe(partial(_Ending, stopped, abandoned), sys.stdin)


class _Ending(asyncio.Protocol):
    """Sets an event when what it reads has ended: one where that ended with a word, another where it did not."""

    def __init__(self, stopped: asyncio.Event, abandoned: asyncio.Event) -> None:
        self._stopped = stopped
        self._abandoned = abandoned
        self._said = b""

    def data_received(self, data: bytes) -> None:
        self._said += data

    def connection_lost(self, _: Exception | None) -> None:
        (self._stopped if self._said else self._abandoned).set()


async def _linger(data: DataDir, abandoned: asyncio.Event, stopped: asyncio.Event) -> None:
    """Once the command that started us has ended, stop when no other command uses us."""
    await abandoned.wait()
    # Kept until we end: a command that comes from now on starts a store server of its own.
    while data.users_lock.alone() is None:  # noqa: ASYNC110 - the kernel sends no event
        await asyncio.sleep(LINGER)
    stopped.set()


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
