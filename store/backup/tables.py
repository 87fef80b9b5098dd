"""Copy every table out of a database in one snapshot, and into a database without tables in one transaction.

The tables are those that the catalogue has, so that none can be forgotten. Left out is what the store server makes anew from the
others: the feed, whose positions are transaction ids of the old server, and what its consumers derive.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import asyncpg
import msgspec
from sqlalchemy.pool import NullPool

from store.backup.archive import TABLES, ArchiveWriter, BadArchive, Member, PieceWriter
from store.database.asyncio_engine import create_async_engine
from store.database.connection import CONNECT_TIMEOUT, MIGRATION_LOCK, DatabaseUnusable, asyncpg_url, translate_errors
from store.database.partition_tables import create_partition_table
from store.database.upgrade import known_versions, upgrade

MADE_ANEW: Final = frozenset(
    (
        "feed",
        "feed_positions",
        "text_groups",
        "text_hashes",
        "call_sums",
        "run_totals",
        "day_sums",
        "summed_days",
        "model_days",
        "model_answers",
    )
)

_VERSION_TABLE: Final = "alembic_version"

_PARTITION_NAME: Final = re.compile(r"[a-z_]+_\d{8}")
_BOUND: Final = re.compile(r"FOR VALUES FROM \('[0-9a-f-]+'\) TO \('[0-9a-f-]+'\)")

type Report = Callable[[str], None]


class _Partition(msgspec.Struct, frozen=True):
    name: str
    parent: str
    bound: str
    """As `pg_get_expr` writes it."""


class _Tables(msgspec.Struct, frozen=True):
    """The member `tables.json`."""

    schema: str
    """The version of the tables."""

    columns: dict[str, list[str]]
    """The columns by table."""

    partitions: list[_Partition]


async def copy_tables_out(url: str, archive: ArchiveWriter, report: Report) -> dict[str, int]:
    """Append every table to a backup, as of one moment, and return the number of rows by table.

    Raises DatabaseError. Other processes go on reading and writing.
    """
    with translate_errors():
        connection = await asyncpg.connect(asyncpg_url(url), timeout=CONNECT_TIMEOUT)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                schema = await _schema_version(connection)
                if schema is None:
                    raise DatabaseUnusable("The database has no tables of Playhead.")
                columns = await _columns(connection)
                partitions = [_Partition(**row) for row in await connection.fetch(PARTITIONS)]
                archive.add(TABLES, msgspec.json.encode(_Tables(schema, columns, partitions)))
                counts = {}
                for table, names in columns.items():
                    if table not in MADE_ANEW:
                        counts[table] = await _copy_out(connection, archive, table, names, report)
                return counts
        finally:
            await connection.close()


async def copy_tables_in(url: str, members: Iterator[Member], report: Report) -> dict[str, int]:
    """Create the tables in a database that has none, fill them from a backup, and return the number of rows by table.

    `members`: those from `tables.json` on. Either all of it happens or nothing. Raises DatabaseError and BadArchive.
    """

    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(asyncpg_url(url), timeout=CONNECT_TIMEOUT)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    with translate_errors():
        async with engine.begin() as outer:
            connection: Any = (await outer.get_raw_connection()).driver_connection
            # SQLAlchemy begins its transaction with the first statement.
            await outer.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            if await _schema_version(connection) is not None:
                raise DatabaseUnusable("The database already has tables of Playhead: name another one, or drop them.")
            described = _parse_tables(next(members, None))
            await outer.run_sync(lambda own: upgrade(own, described.schema))
            await _create_partitions(connection, described.partitions)
            counts = await _copy_in(connection, described.columns, members, report)
            await outer.run_sync(upgrade)
            # Until autovacuum comes, the planner knows nothing of the new rows, and of partitioned tables it never would.
            await connection.execute("ANALYZE")
            return counts


async def _schema_version(connection: asyncpg.Connection) -> str | None:
    if await connection.fetchval("SELECT to_regclass($1)", _VERSION_TABLE) is None:
        return None
    version: str | None = await connection.fetchval(f"SELECT version_num FROM {_VERSION_TABLE}")  # noqa: S608 - a constant
    return version


async def _columns(connection: asyncpg.Connection) -> dict[str, list[str]]:
    """Return the columns of each table that is no partition."""
    found: dict[str, list[str]] = {}
    for row in await connection.fetch(COLUMNS):
        found.setdefault(row["table"], []).append(row["column"])
    return found


async def _copy_out(
    connection: asyncpg.Connection, archive: ArchiveWriter, table: str, columns: list[str], report: Report
) -> int:
    pieces = PieceWriter(archive, f"tables/{table}")

    async def write(data: bytes) -> None:
        pieces.write(data)
        report(f"{table}, {archive.written >> 20:,} MiB")

    # A partitioned table is copied by a query only.
    query = f"SELECT {', '.join(map(_quote, columns))} FROM {_quote(table)}"  # noqa: S608 - names from the catalogue
    status = await connection.copy_from_query(query, output=write, format="binary")
    pieces.finish()
    return _copied_rows(status)


async def _create_partitions(connection: asyncpg.Connection, partitions: list[_Partition]) -> None:
    existing = await _columns(connection)
    for one in partitions:
        if not _PARTITION_NAME.fullmatch(one.name) or one.parent not in existing or not _BOUND.fullmatch(one.bound):
            raise BadArchive(f"its tables.json has a partition {one.name!r} of {one.parent!r} that no Playhead makes")
        await create_partition_table(connection, one.name, one.parent)
        await connection.execute(f"ALTER TABLE {_quote(one.parent)} ATTACH PARTITION {one.name} {one.bound}")


async def _copy_in(
    connection: asyncpg.Connection, columns: dict[str, list[str]], members: Iterator[Member], report: Report
) -> dict[str, int]:
    existing = await _columns(connection)
    counts: dict[str, int] = {}
    member = next(members, None)
    while member is not None:
        name = member.piece_of
        table = name.removeprefix("tables/")
        if table not in existing or not set(columns.get(table, ())) <= set(existing[table]) or table in counts:
            raise BadArchive(f"its member {member.name} belongs to no table of Playhead")
        source = _Pieces(name, member, members, report)
        status = await connection.copy_to_table(table, source=source.read(), columns=columns[table], format="binary")
        counts[table] = _copied_rows(status)
        member = source.following
    return counts


class _Pieces:
    """The pieces of one table, and the member after them."""

    def __init__(self, name: str, first: Member, members: Iterator[Member], report: Report) -> None:
        self._name = name
        self._members = members
        self._report = report
        self.following: Member | None = first

    async def read(self) -> AsyncIterator[bytes]:
        size = 0
        while self.following is not None and self.following.piece_of == self._name:
            size += len(self.following.data)
            self._report(f"{self._name.removeprefix('tables/')}, {size >> 20:,} MiB")
            yield self.following.data
            self.following = next(self._members, None)


def _parse_tables(member: Member | None) -> _Tables:
    if member is None or member.name != TABLES:
        raise BadArchive("it has no tables.json after its files")
    try:
        found = msgspec.json.decode(member.data, type=_Tables)
    except msgspec.DecodeError as error:
        raise BadArchive(f"its tables.json is invalid ({error})") from error
    if found.schema not in known_versions():
        raise BadArchive(
            f"its tables have version {found.schema}, which a newer Playhead has made: restore it with that version"
        )
    return found


def _copied_rows(status: str) -> int:
    """The number in `COPY 12`."""
    return int(status.rpartition(" ")[2])


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


COLUMNS: Final = f"""
SELECT c.relname AS "table", a.attname AS "column"
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND c.relname <> '{_VERSION_TABLE}' AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY c.relname, a.attnum
"""  # noqa: S608 - a constant

PARTITIONS: Final = """
SELECT c.relname AS name, p.relname AS parent, pg_get_expr(c.relpartbound, c.oid) AS bound
FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relispartition
ORDER BY c.relname
"""
