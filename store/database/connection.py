"""Connect to Postgres, migrate, and translate its exceptions into ours.

`Unavailable` means: not now, try again; nothing is wrong with us. `Unusable` means: a person must change something.
Anything else that comes out of here is our own mistake.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from store.database.schema_version import SCHEMA

OLDEST_SERVER = 14

MIGRATION_LOCK = 0x706C6179  # "play"
CONNECT_TIMEOUT = 10.0
COMMAND_TIMEOUT = 60.0
"""Seconds: whose machine is gone says nothing at all, and its connections would be waited for until the kernel gives up."""


class DatabaseError(Exception):
    """Postgres did not do what it was asked."""


class Unavailable(DatabaseError):
    """Postgres is away, starting, full or overloaded: the same may work later."""


class Unusable(DatabaseError):
    """Postgres answers, but not to us: wrong password, missing rights, another version of the tables."""


AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    # 55000: among others, a database that takes no connections for now.
    asyncpg.ObjectNotInPrerequisiteStateError,
)
FORBIDDEN = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)


ASYNCPG = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

BadValue: type[Exception] = asyncpg.exceptions._base.DataError
"""asyncpg's complaint about a value that does not fit its column; of the same name as the server's, and another class."""


@contextlib.contextmanager
def border() -> Iterator[None]:
    """Rename the exceptions of asyncpg and SQLAlchemy that say something about the world."""
    try:
        yield
    except (*AWAY, *ASYNCPG, SQLAlchemyError) as error:
        if (renamed := _renamed(_root(error))) is None:
            raise
        raise renamed from error


def _root(error: BaseException) -> BaseException:
    """What asyncpg raised, under the two wrappings of SQLAlchemy."""
    while isinstance(error, SQLAlchemyError) or type(error).__module__.startswith("sqlalchemy."):
        if (inner := getattr(error, "orig", None) or error.__cause__) is None:
            return error
        error = inner
    return error


def _renamed(error: BaseException) -> DatabaseError | None:
    if isinstance(error, FORBIDDEN):
        return Unusable(f"Postgres refuses us: {_sentence(error)}.")
    if isinstance(error, AWAY) or _is_broken(error):
        return Unavailable(f"Postgres is not available: {_sentence(error)}.")
    return None


def _is_broken(error: BaseException) -> bool:
    # asyncpg has one class for a connection that broke and for our own misuse of one; only the words differ.
    if isinstance(error, asyncpg.InterfaceError):
        return "clos" in str(error)
    # A server killed within a batch leaves its connection in a state that asyncpg itself does not know (0.32).
    return isinstance(error, asyncpg.InternalClientError) and not isinstance(error, asyncpg.OutdatedSchemaCacheError)


def _sentence(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return (str(error) or type(error).__name__).strip().rstrip(".").replace("\n", " ")


def address(url: str) -> str:
    """A database URL in words that may be shown: without the password."""
    parts = urlsplit(url)
    host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{host}{parts.path}"


def _plain(url: str) -> str:
    """The URL as asyncpg wants it, also of one that was written for SQLAlchemy."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise Unusable("A database URL looks like postgresql://user:password@host:5432/name; this one does not.")
    return f"postgresql://{rest}"


class Database:
    """One Postgres database. `prepare` before use; `close` after."""

    def __init__(self, url: str) -> None:
        self.url = _plain(url)
        self.engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://", async_creator=self._connect, pool_pre_ping=True, pool_size=4
        )
        self._pool: asyncpg.Pool | None = None
        self.obstacle = "The database has not been prepared yet."
        """What is in the way of using it until `prepare` has succeeded."""

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url, timeout=CONNECT_TIMEOUT, command_timeout=COMMAND_TIMEOUT)

    async def _connect_to_migrate(self) -> asyncpg.Connection:
        """Without a limit: large tables, or another process's migration, may take their time."""
        return await asyncpg.connect(self.url, timeout=CONNECT_TIMEOUT)

    async def prepare(self) -> None:
        """Bring the tables to our version. Raises `Unavailable`, and `Unusable` for a server or tables that are not for us."""
        once = create_async_engine("postgresql+asyncpg://", async_creator=self._connect_to_migrate, poolclass=NullPool)
        with border():
            async with once.begin() as connection:
                await _check_server(connection)
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
                await connection.run_sync(migrate)
        await self.connect()

    async def connect(self) -> None:
        """Be ready for use, where another process has prepared the tables. Connects when it is asked something."""
        if self._pool is None:
            with border():
                self._pool = await asyncpg.create_pool(
                    self.url, min_size=0, max_size=4, timeout=CONNECT_TIMEOUT, command_timeout=COMMAND_TIMEOUT
                )

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
        await self.engine.dispose()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A transaction for statements of SQLAlchemy Core."""
        if self._pool is None:
            # Before `prepare` its tables may be of another version, or missing.
            raise Unavailable(self.obstacle)
        with border():
            async with self.engine.begin() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def raw(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection of asyncpg itself, for the hot path."""
        if self._pool is None:
            raise Unavailable(self.obstacle)
        with border():
            async with self._pool.acquire() as connection:
                yield connection


async def _check_server(connection: AsyncConnection) -> None:
    version = int(await connection.scalar(text("SHOW server_version_num")) or 0) // 10000
    if version < OLDEST_SERVER:
        raise Unusable(f"This server is PostgreSQL {version}; Playhead needs {OLDEST_SERVER} or newer.")


def migrate(connection: Connection) -> None:
    """Run the migrations that these tables lack. Raises `Unusable` when a newer Playhead made them."""
    if _revision(connection) == SCHEMA:
        return
    # Alembic takes as long to import as all the rest of the store server, and is needed once in the life of a database.
    from store.database.upgrade import upgrade

    if (newer := upgrade(connection)) is not None:
        raise Unusable(
            f"The tables are of version {newer}, which this Playhead does not know (its newest is {SCHEMA}):"
            " upgrade Playhead, or give it another database."
        )


def _revision(connection: Connection) -> str | None:
    """The version that the tables say they are of (alembic's own table)."""
    if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found
