"""Connect to Postgres, migrate the tables, and translate exceptions.

`DatabaseUnavailable` is raised if the same may work later, `DatabaseUnusable` if a person has to change something. Any other
exception is a bug.
"""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only

from calls.project_runs import full_run_name
from store.database.asyncio_engine import AsyncConnection, AsyncEngine, create_async_engine
from store.database.object_forms import NoObjectStorage, ObjectStorage
from store.database.run_versions import RunVersions
from store.database.schema_version import SCHEMA

OLDEST_SERVER = 14

MIGRATION_LOCK = 0x706C6179  # "play"
MIGRATION_PATIENCE: Final = 5
"""Seconds to wait for a lock on a table. In a rolling update a store server of the older version may hold one, and itself wait on
another connection for a table that is already altered: Postgres does not see that, so one of the two has to give way."""

CONNECT_TIMEOUT = 10.0
COMMAND_TIMEOUT = 60.0
"""Seconds that a command may take. Without a limit, a command to a machine that is gone ends only when the kernel gives up."""


KEYED_CONNECTIONS: Final = 2
"""Connections for statements that are planned once."""

NO_TIME_LIMITS = """
SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', '0', true)
"""
"""Lifts the limits that a role or database may have for its statements, to the end of the transaction."""


class DatabaseError(Exception):
    """A database command failed."""


class DatabaseUnavailable(DatabaseError):
    """Postgres is down, starting, full or overloaded; the same command may work later."""


class DatabaseBusy(DatabaseUnavailable):
    """Postgres answers, but all connections to it are in use."""


class DatabaseUnusable(DatabaseError):
    """Postgres refuses access (password, privileges), or its tables have another version."""


UNAVAILABLE_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    # SQLSTATE 55000: for example a database that accepts no connections at present.
    asyncpg.ObjectNotInPrerequisiteStateError,
)
UNUSABLE_ERRORS = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)


CONFLICTS = (asyncpg.TransactionRollbackError, asyncpg.LockNotAvailableError)
"""Errors of an upgrade beside a store server of the older version, which still writes."""

PARAMETER_ERRORS = (asyncpg.UndefinedObjectError, asyncpg.InvalidParameterValueError, asyncpg.PostgresSyntaxError)
"""How the server refuses a parameter of the URL that it does not know, or its value."""

POOLER_ERRORS = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""Errors that no Postgres gives that we are connected to all the time: the statement was prepared in another session."""

POOLER_ADVICE: Final = (
    "A pooler in front of Postgres changes the session between two transactions (pgbouncer with pool_mode=transaction):"
    " use pool_mode=session, or the address of Postgres itself."
)

SESSION_ERRORS = (asyncpg.ReadOnlySQLTransactionError,)
"""Errors that may be due to a setting that the server had when the connection was opened, such as `default_transaction_read_only`
of a server whose disk was full, or to a server that is not the primary any more. Open connections keep both."""

TIMED_OUT: Final = asyncpg.QueryCanceledError
"""An error that may be due to such a setting (`statement_timeout`), or only to its statement. So each connection that meets it is
closed, and the others stay."""

ASYNCPG_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

BadValue: type[Exception] = asyncpg.exceptions._base.DataError
"""asyncpg's own error for a value that does not fit its column; another class than `asyncpg.DataError`, the server's error."""


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the exceptions of asyncpg and SQLAlchemy that bugs do not cause.

    In a task that is being cancelled they stand for its cancellation, of which the rollback failed, as where Postgres has
    ended before: who tries again after an error would lose the cancellation, and never end.
    """
    try:
        yield
    except (*UNAVAILABLE_ERRORS, *ASYNCPG_ERRORS, SQLAlchemyError) as error:
        if _is_being_cancelled():
            raise asyncio.CancelledError from error
        if (translated := _translated_error(_root_error(error))) is None:
            raise
        raise translated from error


def _is_being_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return False
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def _refuse_other_tables() -> Iterator[None]:
    """Raise `DatabaseUnusable` for what else Postgres refuses while tables are made: tables of others, or no schema for ours."""
    try:
        yield
    except (asyncpg.PostgresError, SQLAlchemyError) as error:
        root = _root_error(error)
        if isinstance(root, CONFLICTS):
            raise DatabaseUnavailable(
                f"The tables could not be upgraded beside another store server: {_error_text(root)}."
            ) from error
        if not isinstance(root, asyncpg.PostgresError) or _translated_error(root) is not None:
            raise
        raise DatabaseUnusable(
            f"The tables cannot be created or upgraded: {_error_text(root)}. Use a database in which nothing else has tables."
        ) from error


def _root_error(error: BaseException) -> BaseException:
    """The exception that asyncpg raised, which SQLAlchemy wraps twice."""
    while isinstance(error, SQLAlchemyError) or type(error).__module__.startswith("sqlalchemy."):
        if (inner := getattr(error, "orig", None) or error.__cause__) is None:
            return error
        error = inner
    return error


def _translated_error(error: BaseException) -> DatabaseError | None:
    if isinstance(error, PoolTimeout):
        return DatabaseBusy(
            "All connections to Postgres were in use for half a minute: ask less at once, or again later."
        )
    if isinstance(error, UNUSABLE_ERRORS):
        return DatabaseUnusable(f"Postgres refuses access: {_error_text(error)}.{_missing_right(error)}")
    if isinstance(error, POOLER_ERRORS):
        return DatabaseUnusable(POOLER_ADVICE)
    if isinstance(error, UNAVAILABLE_ERRORS):
        return DatabaseUnavailable(f"Postgres is not available: {_error_text(error)}.")
    if _is_broken(error):
        # asyncpg's texts name its own states and functions.
        return DatabaseUnavailable("Postgres is not available: the connection was closed.")
    return None


def _is_broken(error: BaseException) -> bool:
    # asyncpg has one class for a broken connection and for misuse of a connection; only the message differs.
    if isinstance(error, asyncpg.InterfaceError):
        return "clos" in str(error)
    # If the server is killed within a batch, asyncpg 0.32 fails with an internal error.
    return isinstance(error, asyncpg.InternalClientError) and not isinstance(error, asyncpg.OutdatedSchemaCacheError)


def _missing_right(error: BaseException) -> str:
    # Since PostgreSQL 15, only the owner of a database may create tables in its schema `public`.
    if isinstance(error, asyncpg.InsufficientPrivilegeError) and "schema" in str(error):
        return " Its user has to create tables: make it the owner of the database (ALTER DATABASE … OWNER TO …)."
    return ""


def _error_text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return (str(error) or type(error).__name__).strip().rstrip(".").replace("\n", " ")


def url_without_password(url: str) -> str:
    """A database URL without its user, password and parameters, for messages."""
    scheme, _, rest = url.partition("://")
    if _URL.fullmatch(rest) is None:
        return f"{scheme}://…"
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


_HOST: Final = r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\[\]/?#@:,]*)(?::\d{1,5})?"
_URL: Final = re.compile(
    rf"(?:[^/?#\[\]]*@)?{_HOST}(?:,{_HOST})*(?:/[^?#]*)?(?:\?(?:[^=&#]+=[^&#]*(?:&[^=&#]+=[^&#]*)*)?)?"
)
"""What follows the scheme of a URL, as libpq reads it: one host or several, each with a port of its own."""


def asyncpg_url(url: str) -> str:
    """Convert a URL for libpq or SQLAlchemy to one for asyncpg. Raises `DatabaseUnusable` without quoting it: it may have a password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise DatabaseUnusable(f"The database URL is invalid: {URL_FORM}.")
    if _URL.fullmatch(rest) is None:
        raise DatabaseUnusable(
            f"The database URL is invalid: {URL_FORM}. Write special characters of user and password with their codes:"
            " / is %2F, # is %23, ? is %3F, [ is %5B, % is %25."
        )
    return f"postgresql://{rest}"


URL_FORM: Final = "use the form postgresql://user:password@host:5432/name"


ARRAYS = {
    1000: (16, "bool"),
    1001: (17, "bytea"),
    1005: (21, "int2"),
    1007: (23, "int4"),
    1009: (25, "text"),
    1015: (1043, "varchar"),
    1016: (20, "int8"),
    1022: (701, "float8"),
    1028: (26, "oid"),
    1182: (1082, "date"),
    1185: (1184, "timestamptz"),
    2951: (2950, "uuid"),
    3807: (3802, "jsonb"),
}
"""The oids of types of arrays, with those of their elements: the same in every Postgres, as for all types that initdb makes."""


def _type_row(array: int) -> dict[str, Any]:
    """What asyncpg reads of a type of arrays from the catalogues."""
    element, name = ARRAYS[array]
    nothing = dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames"))
    known = {"oid": array, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "elemtype": element, "elemdelim": b","}
    return nothing | known


BYTES_ARRAY: Final = 1001
BYTES: Final = 17
"""The oids of `bytea[]` and `bytea`."""

_NULL: Final = (-1).to_bytes(4, signed=True)


def write_bytes_array(values: Collection[bytes | memoryview | None]) -> bytes:
    """Return the binary form of an array of one dimension."""
    dimensions = 1 if values else 0
    # Each element has its length before it.
    parts: list[bytes | memoryview] = [b""] * (2 * len(values) + 1)
    parts[0] = b"".join([number.to_bytes(4) for number in (dimensions, 1, BYTES, len(values), 1)])
    parts[1::2] = [_NULL if value is None else len(value).to_bytes(4) for value in values]
    parts[2::2] = [b"" if value is None else value for value in values]
    return b"".join(parts) if values else bytes(parts[0][:12])


def read_bytes_array(data: bytes) -> list[bytes | None]:
    """Read the binary form of an array of one dimension."""
    found: list[bytes | None] = []
    at = 20
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], signed=True)
        at += 4
        found.append(None if size < 0 else bytes(data[at : at + size]))
        at += max(size, 0)
    return found


class StoreConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that knows which runs its transaction changes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.database: Database | None = None
        self.changed_runs: set[str] = set()
        """The full names of runs that the present transaction changes."""

        self._has_session_state = False

    def write_bytes_arrays(self) -> None:
        """Write parameters of the type `bytea[]` here.

        asyncpg asks of each element of an array whether it is an array itself, which takes several times as long as writing it.
        """
        # What `set_type_codec` does once it has asked the server for the oid.
        settings = self._protocol.get_settings()
        settings.add_python_codec(
            BYTES_ARRAY, "_bytea", "pg_catalog", [], "scalar", write_bytes_array, read_bytes_array, "binary"
        )

    def keep_session_state(self) -> None:
        """Note that locks or settings outlive a transaction: they are reset when the connection is given back."""
        self._has_session_state = True

    def get_reset_query(self) -> str:
        """Return the statements by which a pool resets a connection that is given back; most have nothing to reset."""
        query: str = super().get_reset_query()
        return query if self._has_session_state else ""

    async def _introspect_types(self, typeoids: Collection[int], timeout: float | None) -> tuple[Any, Any]:  # noqa: ASYNC109 - asyncpg's
        """Return what is known of these types.

        asyncpg knows no arrays when it connects. The statement by which it asks the server takes 25 ms of CPU the first time, and
        10 ms for each further type: as long as all else that a new connection takes.
        """
        if all(one in ARRAYS for one in typeoids):
            # The name says that no other statement has taken the place of the one whose types these are.
            return [_type_row(one) for one in typeoids], SimpleNamespace(name="none")
        found: tuple[Any, Any] = await super()._introspect_types(typeoids, timeout)
        return found


def note_changed_runs(connection: asyncpg.Connection, project: str, runs: Iterable[str]) -> None:
    """Note, before the transaction that changes these runs commits, that whatever was loaded of them is out of date."""
    database: Database | None = getattr(connection, "database", None)
    if database is not None and database.run_versions is not None:
        names = {full_run_name(project, run) for run in runs}
        database.run_versions.change(names)
        connection.changed_runs.update(names)


class Database:
    """A Postgres database. Call `prepare` or `connect` before use, and `close` afterwards."""

    def __init__(self, url: str, store_server: uuid.UUID | None = None) -> None:
        """`store_server` appends to the hash chains of what is written (`store.proof`); without it, nothing is proven."""
        self.url = asyncpg_url(url)
        self.store_server = store_server
        self.objects: ObjectStorage = NoObjectStorage()
        """Where large bodies are that are not in the tables."""

        self.run_versions: RunVersions | None = None
        """Where workers see which runs have changed; None if other store servers write to the database, too."""

        # The connection that was used last is taken first: it has the most plans.
        self.engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self.connect_alone,
            pool_pre_ping=True,
            pool_size=4,
            pool_use_lifo=True,
        )
        self.generation = 0
        """Grows when connections that were opened before may not be used any more."""

        self._pool: asyncpg.Pool | None = None
        self._keyed_pool: asyncpg.Pool | None = None
        """Connections whose statements are planned once (`connection_by_keys`)."""

        self._connected = asyncio.Event()
        self.rewriting = asyncio.Lock()
        """Held by who writes files of the database anew, which takes seconds: those who wait for it keep no connection from others."""

        self.obstacle = "The database has not been prepared yet."
        """Why the database cannot be used, until `prepare` has succeeded."""

    async def connect_alone(self) -> asyncpg.Connection:
        """Open a connection that no pool keeps. Raises what asyncpg raises."""
        return await asyncpg.connect(
            self.url, timeout=CONNECT_TIMEOUT, command_timeout=COMMAND_TIMEOUT, connection_class=StoreConnection
        )

    async def _adopt_connection(self, connection: StoreConnection) -> None:
        connection.database = self
        connection.write_bytes_arrays()

    async def _plan_once(self, connection: StoreConnection) -> None:
        # Arrays of bytes are read by asyncpg itself, in a quarter of the time. None are written here.
        connection.database = self
        await connection.execute("SET plan_cache_mode = force_generic_plan")

    async def _connect_to_migrate(self) -> asyncpg.Connection:
        """Connect without a limit for commands, because migrating large tables may take long."""
        try:
            return await asyncpg.connect(self.url, timeout=CONNECT_TIMEOUT)
        except (*PARAMETER_ERRORS, OverflowError) as error:
            raise asyncpg.ClientConfigurationError(f"a part of the database URL is invalid: {error}") from error

    async def prepare(self) -> None:
        """Migrate the tables to the version of this Playhead. Raises `DatabaseUnavailable` and `DatabaseUnusable`."""
        once = create_async_engine("postgresql+asyncpg://", async_creator=self._connect_to_migrate, poolclass=NullPool)
        with translate_errors(), _refuse_other_tables():
            async with once.begin() as connection:
                await _check_server(connection)
                await connection.execute(text(NO_TIME_LIMITS))
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
                await connection.execute(text(f"SET LOCAL lock_timeout = '{MIGRATION_PATIENCE}s'"))
                await connection.run_sync(migrate)
        await self.connect()

    async def connect(self) -> None:
        """Create the connection pool, if another process has prepared the tables. The first command connects."""
        if self._pool is None:
            with translate_errors():
                self._keyed_pool = await self._create_pool(KEYED_CONNECTIONS, self._plan_once)
                self._pool = await self._create_pool(4, self._adopt_connection)
        self._connected.set()

    async def _create_pool(self, size: int, init: Callable[[StoreConnection], Awaitable[None]]) -> asyncpg.Pool:
        return await asyncpg.create_pool(
            self.url,
            min_size=0,
            max_size=size,
            timeout=CONNECT_TIMEOUT,
            command_timeout=COMMAND_TIMEOUT,
            connection_class=StoreConnection,
            init=init,
        )

    async def wait_until_connected(self) -> None:
        """Wait until `prepare` or `connect` has succeeded."""
        await self._connected.wait()

    async def close(self) -> None:
        for pool in (self._pool, self._keyed_pool):
            if pool is not None:
                pool.terminate()
        await self.engine.dispose()

    @property
    def is_prepared(self) -> bool:
        """Whether the tables have the version of this Playhead."""
        return self._pool is not None

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction for statements of SQLAlchemy Core."""
        if self._pool is None:
            # Before `prepare`, the tables may have another version or be missing.
            raise DatabaseUnavailable(self.obstacle)
        changed: set[str] = set()
        try:
            async with self._translate_errors(), self.engine.begin() as connection:
                driver = connection.sync_connection.connection.driver_connection  # type: ignore[union-attr]
                if driver is not None:
                    driver.database = self
                    changed = driver.changed_runs
                try:
                    yield connection
                except (TIMED_OUT, SQLAlchemyError) as error:
                    if isinstance(_root_error(error), TIMED_OUT):
                        await connection.invalidate()
                    raise
        finally:
            self._note_end_of_transaction(changed)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Acquire an asyncpg connection, which is faster than SQLAlchemy."""
        async with self._acquire(self._pool) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def connection_by_keys(self) -> AsyncIterator[asyncpg.Connection]:
        """Acquire a connection for statements that read by keys, each of which Postgres plans once.

        On other connections, it plans a statement for its very values the first five times. Over the partitions of many days, that
        takes several times as long as to execute it.
        """
        async with self._acquire(self._keyed_pool) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _acquire(self, pool: asyncpg.Pool | None) -> AsyncIterator[asyncpg.Connection]:
        if pool is None:
            raise DatabaseUnavailable(self.obstacle)
        async with self._translate_errors(), pool.acquire() as connection:
            # Taken before: once the connection is lost, the object of the pool stands for none.
            changed = connection.changed_runs
            try:
                yield connection
            except TIMED_OUT:
                await connection.close()
                raise
            finally:
                self._note_end_of_transaction(changed)

    @contextlib.asynccontextmanager
    async def _translate_errors(self) -> AsyncIterator[None]:
        """Translate exceptions. After one of `SESSION_ERRORS`, the next commands use new connections."""
        try:
            with translate_errors():
                yield
        except DatabaseUnavailable as error:
            if error.__cause__ is not None and isinstance(_root_error(error.__cause__), SESSION_ERRORS):
                await self._replace_connections()
            raise

    async def _replace_connections(self) -> None:
        """Close the open connections, those in use when they are given back."""
        self.generation += 1
        for pool in (self._pool, self._keyed_pool):
            if pool is not None:
                await pool.expire_connections()
        await self.engine.dispose()

    def _note_end_of_transaction(self, changed: set[str]) -> None:
        """Note once more what has changed: what was loaded since `note_changed_runs` may be from before the transaction."""
        if changed and self.run_versions is not None:
            self.run_versions.change(changed)
        changed.clear()


async def _check_server(connection: AsyncConnection) -> None:
    version = int(await connection.scalar(text("SHOW server_version_num")) or 0) // 10000
    if version < OLDEST_SERVER:
        raise DatabaseUnusable(f"The server is PostgreSQL {version}: use PostgreSQL {OLDEST_SERVER} or newer.")
    # With another one, a batch with a character that it lacks could never be stored.
    if (encoding := await connection.scalar(text("SHOW server_encoding"))) != "UTF8":
        raise DatabaseUnusable(
            f"The encoding of the database is {encoding}, which cannot hold every text: use one with UTF8"
            " (CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0)."
        )


def migrate(connection: Connection) -> None:
    """Create the tables, or run the missing migrations. Raises `DatabaseUnusable` if a newer Playhead has migrated the tables."""
    current = _current_revision(connection)
    if current == SCHEMA:
        return
    if current is None and connection.scalar(text("SELECT to_regclass('runs')")) is None:
        _create_tables(connection)
        return
    # Importing alembic takes as long as the rest of the store server, and it is needed once per version of the tables.
    from store.database.upgrade import upgrade

    if (newer := upgrade(connection)) is not None:
        raise DatabaseUnusable(
            f"The tables have version {newer} and this Playhead knows versions up to {SCHEMA}:"
            " upgrade Playhead, or use another database."
        )


def _create_tables(connection: Connection) -> None:
    """Create the tables of a new database as they are now, by one script. The migrations would give the same (a test)."""
    from sqlalchemy import create_mock_engine

    from store.database.tables import metadata

    statements: list[str] = []
    engine = create_mock_engine(
        "postgresql+asyncpg://", lambda ddl, *_, **__: statements.append(str(ddl.compile(dialect=connection.dialect)))
    )
    metadata.create_all(engine, checkfirst=False)
    # As alembic creates and fills it.
    key = "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)"
    statements.append(f"CREATE TABLE alembic_version (version_num varchar(32) NOT NULL, {key})")
    statements.append(f"INSERT INTO alembic_version VALUES ('{SCHEMA}')")  # noqa: S608 - a constant
    driver: Any = connection.connection.driver_connection
    await_only(driver.execute(";\n".join(statements)))


def _current_revision(connection: Connection) -> str | None:
    """The version of the tables, from alembic's table; None without one."""
    if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found
