"""The process of the store server: it drains the spools and serves the API until it is stopped.

It reads its configuration as a JSON line from stdin. On stdout it reports as JSON lines that it is ready, or why it cannot
start. It stops cleanly on SIGTERM, or when stdin ends because the process that started it has ended.
"""

import asyncio
import contextlib
import datetime as dt
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from calls.keys.profile import BadProfile
from store.api.app import create_app
from store.api.deps import EditCheck
from store.api.guard import is_loopback
from store.api.server import run_server
from store.database.connection import Database, DatabaseError, url_without_password
from store.database.plans import warm_connections
from store.database.wait import require_own_sessions, wait_until_prepared
from store.datadir import DataDir, DataDirError, open_data_dir
from store.embedded.early_start import EarlyStart
from store.embedded.postgres import EmbeddedPostgresError, EmbeddedServer, ensure_server
from store.ingest.batch_writer import BatchWriter
from store.large.helper import HELPER_COMMAND
from store.large.memory import return_freed_blocks
from store.lock import LockTaken
from store.log_format import configure_logging
from store.proof.sealing import Sealer
from store.server_config import StoreServerConfig
from store.server_parts import PartFactory, ServerParts

log = logging.getLogger(__name__)

EXIT_FAILED = 125

FIRST_TRY_TIMEOUT = 5.0
"""Seconds to wait for the database before serving without it, so that a liveness probe does not have to wait for it."""

EXPORT_PATIENCE = 3.0
"""Seconds that a stopping store server may take to export runs that have just ended."""

OBJECTS_INTERVAL = 20.0
"""Seconds until object storage is looked at again."""

REMOVAL_TIME = 2.0
"""Seconds that removing a data directory may take."""

REMOVAL_GRACE = 10.0
"""Seconds after which a store server without its data directory ends, whatever it does."""

USER_POLL_INTERVAL = 0.2
"""Seconds between two checks whether other commands still use the store server."""


class CannotStart(Exception):
    """The store server cannot be started; the message has the reason and what to do."""


class DataDirectoryInUse(CannotStart):
    """Another store server has the data directory. It may end at any moment, so a command may try again."""


def main(
    line: bytes,
    edit_problem: EditCheck | None = None,
    *,
    helper_command: Sequence[str] = HELPER_COMMAND,
    postgres: EarlyStart | None = None,
) -> int:
    """Run the store server until it is stopped, and return the exit status.

    `line` is its configuration. `edit_problem` checks the overrides and forks of a requested replay. `helper_command` starts a
    helper process. `postgres` is the embedded server, if it is already being started.
    """
    configure_logging()
    return_freed_blocks()
    try:
        config = msgspec.json.decode(line, type=StoreServerConfig)
        configure_logging(config.log_format)
        asyncio.run(_serve(config, edit_problem, helper_command, postgres))
    except DataDirectoryInUse as error:
        _write_message({"failed": str(error), "is_in_use": True})
        return EXIT_FAILED
    except (CannotStart, BadProfile, DataDirError, DatabaseError, EmbeddedPostgresError) as error:
        _write_message({"failed": str(error)})
        return EXIT_FAILED
    except msgspec.ValidationError as error:
        _write_message({"failed": f"the configuration of the store server is invalid: {error}"})
        return EXIT_FAILED
    finally:
        if postgres is not None:
            postgres.close()
    return 0


async def _serve(
    config: StoreServerConfig,
    edit_problem: EditCheck | None,
    helper_command: Sequence[str],
    postgres: EarlyStart | None,
) -> None:
    """Run the store server until it is stopped."""
    stopped, abandoned = asyncio.Event(), asyncio.Event()
    await _watch_for_stop(stopped, abandoned if config.temporary else stopped)
    data = open_data_dir(Path(config.data))
    # The lock first: whose port is taken by the store server of this very directory is told to use that one.
    with _lock_data_directory(data, config.lock), _bind_api_socket(config) as api_socket:
        async with _open_database(config, data, postgres) as (database, embedded):
            parts = PartFactory(config, data, database, helper_command).make_parts(embedded, edit_problem)
            prepare = partial(_prepare, database, parts.writer, may_be_pooled=bool(config.database_url))
            if not config.may_wait:
                await _prepare_now(prepare, config.database_url)
            reporter = _PreparationReporter()
            async with asyncio.TaskGroup() as group:
                background = (
                    group.create_task(_check_objects(database, reporter)),
                    group.create_task(_wait_for_database(prepare, database, reporter)),
                    group.create_task(_stop_when_unused(data, config.idle_timeout, abandoned, stopped)),
                    group.create_task(parts.auto_sessions.run()),
                    group.create_task(_follow_record(database, parts, reporter, runs_retention=config.runs_retention)),
                    group.create_task(parts.audit.run()),
                )
                draining = group.create_task(parts.ingester.run())
                tokens = _full_tokens(config, data)
                app = create_app(parts.deps, tokens, data.api_token_file, data.api_tokens())
                async with run_server(app, api_socket), _serve_versions(config, database):
                    await reporter.wait_for_first_try()
                    reporter.report_ready({"ready": True, "port": api_socket.getsockname()[1]})
                    await stopped.wait()
                    if embedded is not None:
                        embedded.end_revival()
                    parts.deps.signal.close()
                    await parts.followers.finish_exports(EXPORT_PATIENCE)
                for task in background:
                    task.cancel()
                await parts.stop(draining)


def _serve_versions(config: StoreServerConfig, database: Database) -> contextlib.AbstractAsyncContextManager[None]:
    if config.versions_socket is None:
        return contextlib.nullcontext()
    from store.feed.stored_versions import serve_versions

    return serve_versions(database, Path(config.versions_socket))


async def _prepare(database: Database, writer: BatchWriter, *, may_be_pooled: bool) -> None:
    """Migrate the tables and create the partitions of the next days. `may_be_pooled`: the database is one of the user's."""
    if may_be_pooled:
        await require_own_sessions(database.connect_alone)
    await database.prepare()
    await writer.create_upcoming_partitions(dt.datetime.now(dt.UTC).date())


async def _prepare_now(prepare: Callable[[], Awaitable[None]], url: str | None) -> None:
    try:
        await prepare()
    except DatabaseError as error:
        if url is None:
            raise
        raise CannotStart(
            f"cannot use the database {url_without_password(url)} ({str(error).rstrip('.')});"
            " check that it runs and that the user has access, or correct --database-url"
        ) from error


async def _wait_for_database(
    prepare: Callable[[], Awaitable[None]], database: Database, reporter: "_PreparationReporter"
) -> None:
    await wait_until_prepared(prepare, database, reporter.report)
    reporter.report_prepared()


async def _follow_record(
    database: Database, parts: ServerParts, reporter: "_PreparationReporter", *, runs_retention: bool
) -> None:
    """Run what works on what is stored. Before the database is prepared, each part would report that it cannot, and wait."""
    await database.wait_until_connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(parts.followers.run())
        group.create_task(warm_connections(database))
        group.create_task(_seal(parts.sealer, reporter))
        group.create_task(parts.anchorer.run())
        if runs_retention:
            group.create_task(parts.retention.run())


async def _seal(sealer: Sealer, reporter: "_PreparationReporter") -> None:
    """Seal what is stored, and report where nothing is signed any more."""
    await reporter.wait_until_ready()
    await sealer.run(lambda message: _write_message({"progress": message}))


async def _check_objects(database: Database, reporter: "_PreparationReporter") -> None:
    """Check the object storage after the start, and again as long as something is wrong with it; report what and when it is over."""
    await reporter.wait_until_ready()
    if database.objects.threshold is None:
        return
    reported: str | None = None
    while True:
        why = (
            await database.objects.check() if reported is None or database.objects.trouble else database.objects.trouble
        )
        if why is not None and why != reported:
            _write_message({"progress": f"object storage: {why}. Large bodies are stored in the database meanwhile"})
        elif why is None and reported:
            _write_message({"progress": "object storage works again"})
        reported = why or ""
        await asyncio.sleep(OBJECTS_INTERVAL)


class _PreparationReporter:
    """Reports on stdout how preparing the database proceeds: in the first message, and after it."""

    def __init__(self) -> None:
        self._first_result = asyncio.Event()
        self._message: str | None = None
        self._is_ready_written = False
        self._ready = asyncio.Event()
        self._is_prepared = False

    def report(self, message: str) -> None:
        """Report an obstacle, or that there is none any more."""
        log.info("%s", message)
        self._message = message
        self._first_result.set()
        if self._is_ready_written:
            _write_message({"progress": message})

    def report_prepared(self) -> None:
        """Report that the database is prepared."""
        self._is_prepared = True
        self._first_result.set()
        if self._is_ready_written:
            _write_message({"prepared": True})

    async def wait_for_first_try(self) -> None:
        """Wait until the database is prepared or an obstacle is known, for `FIRST_TRY_TIMEOUT` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_TRY_TIMEOUT):
                await self._first_result.wait()

    async def wait_until_ready(self) -> None:
        """Wait until the first message is written."""
        await self._ready.wait()

    def report_ready(self, ready: Mapping[str, object]) -> None:
        """Report that the API is ready, and whether the database is prepared."""
        self._is_ready_written = True
        self._ready.set()
        message = self._message or "waiting for the database: it does not answer yet, or its tables are being upgraded"
        _write_message({**ready, "prepared": self._is_prepared} | ({} if self._is_prepared else {"progress": message}))


def _full_tokens(config: StoreServerConfig, data: DataDir) -> dict[str, str]:
    """Return the tokens that allow everything, by the names that the audit log has for them."""
    if config.open_api:
        return {}
    configured = {f"api_token setting {number}": token for number, token in enumerate(config.tokens, 1)}
    return {data.api_token_file.name: data.api_token()} | configured


@contextlib.asynccontextmanager
async def _open_database(
    config: StoreServerConfig, data: DataDir, postgres: EarlyStart | None
) -> AsyncIterator[tuple[Database, EmbeddedServer | None]]:
    """Open the configured database, or an embedded one."""
    embedded: EmbeddedServer | None = None
    if postgres is not None:
        embedded = await asyncio.to_thread(postgres.wait)
    elif not config.database_url:
        embedded = await asyncio.to_thread(ensure_server, data.postgres)
    url = config.database_url or (embedded.dsn if embedded else "")
    database = Database(url, data.signing_keys().server)
    try:
        yield database, embedded
    finally:
        await database.close()
        if embedded is not None:
            await asyncio.to_thread(embedded.close)


@contextlib.contextmanager
def _lock_data_directory(data: DataDir, passed: int | None) -> Iterator[None]:
    """Lock the data directory against a second store server. The kernel releases the lock even if this process is killed.

    `passed`: the descriptor of the lock, if whoever started this process has locked it.
    """
    if passed is not None:
        os.set_inheritable(passed, False)
        try:
            yield
        finally:
            os.close(passed)
        return
    try:
        with data.store_lock.hold():
            yield
    except LockTaken as error:
        raise DataDirectoryInUse(
            f"another store server uses {data.root}: stop the `playhead` command that started it, or use another directory with --data DIR"
        ) from error


@contextlib.contextmanager
def _bind_api_socket(config: StoreServerConfig) -> Iterator[socket.socket]:
    """Bind the socket that the API listens on."""
    if config.open_api and not is_loopback(config.listen):
        raise CannotStart(
            f"open_api would give other machines access to the API on {config.listen}: remove open_api, or listen on loopback"
        )
    if config.listener is not None:
        os.set_inheritable(config.listener, False)
        with socket.socket(fileno=config.listener) as passed:
            yield passed
        return
    family = socket.AF_INET6 if ":" in config.listen else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as api_socket:
        api_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux":
            # The command that starts us reserves the port; only Linux lets a socket without this option listen there.
            api_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            api_socket.bind((config.listen, config.port))
        except OSError as error:
            raise CannotStart(
                f"the API cannot listen on {config.listen}:{config.port}: {error.strerror};"
                " choose another port with --api-port (0 takes a free one)"
            ) from error
        yield api_socket


async def _watch_for_stop(stopped: asyncio.Event, abandoned: asyncio.Event) -> None:
    """Set `stopped` on SIGTERM, SIGINT or a line on stdin, and `abandoned` if stdin ends without a line."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # Shells ignore it in what they start in the background, and so would a start of Postgres that is cut off by it.
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    await loop.connect_read_pipe(partial(_StdinWatcher, stopped, abandoned), sys.stdin)


class _StdinWatcher(asyncio.Protocol):
    """Sets one event if stdin ends after any data, and another if it ends without."""

    def __init__(self, stopped: asyncio.Event, abandoned: asyncio.Event) -> None:
        self._stopped = stopped
        self._abandoned = abandoned
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data

    def connection_lost(self, _: Exception | None) -> None:
        (self._stopped if self._received else self._abandoned).set()


async def _stop_when_unused(
    data: DataDir, idle_timeout: float, abandoned: asyncio.Event, stopped: asyncio.Event
) -> None:
    """Stop when the command that started this process has ended and no other command has used it for `idle_timeout` seconds.

    Stops earlier if the successor lock is held, or if the data directory is removed.
    """
    if (users_lock := data.users_lock.acquire_shared()) is not None:
        # From now on the file exists unless the directory was removed, which may happen as soon as the command has ended.
        os.close(users_lock)
    await abandoned.wait()
    loop = asyncio.get_running_loop()
    own_lock = data.store_lock.identity()
    last_use = loop.time()
    while data.store_lock.identity() == own_lock:
        try:
            users_lock = data.users_lock.try_exclusive()
        except FileNotFoundError:
            break
        if users_lock is None:
            last_use = loop.time()
        elif loop.time() - last_use >= idle_timeout or data.successor_lock.is_held():
            # The users' lock is held until this process ends, so that a command that comes later starts its own store server.
            data.withdraw("store")
            stopped.set()
            return
        else:
            os.close(users_lock)
        await asyncio.sleep(USER_POLL_INTERVAL)
    # The directory is being removed, and files that are written meanwhile would stay behind.
    await asyncio.sleep(REMOVAL_TIME)
    # What waits for a database that is gone would wait for ever, and has nothing left to lose.
    loop.call_later(REMOVAL_GRACE, os._exit, 0)
    stopped.set()


def _write_message(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer.readline()))
