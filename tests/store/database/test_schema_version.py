"""The migrations create the tables of `tables`, and an unknown version of the schema is refused."""

import asyncio
import re
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

import store.database.connection
from store.database.connection import (
    Database,
    DatabaseBusy,
    DatabaseUnavailable,
    DatabaseUnusable,
    url_without_password,
)
from store.database.schema_version import SCHEMA
from store.database.tables import PARTITIONED, metadata
from store.database.traits import TRAITS_OF_COLUMNS, trait_number
from store.database.upgrade import known_versions, upgrade
from store.database.wait import wait_until_prepared
from store.embedded.postgres import EmbeddedServer
from tests.support.postgres import create, drop, run, url


def dump(server: EmbeddedServer, name: str) -> list[str]:
    """The schema of a database as pg_dump writes it, without the dump's random token, and what the migrations have stored."""
    said = run(server, "pg_dump", "--schema-only", "--no-owner", name)
    said += run(server, "pg_dump", "--data-only", "--inserts", "--no-owner", name)
    return [line for line in said.splitlines() if line and not re.match(r"--|\\(un)?restrict", line)]


async def test_a_new_database_has_the_tables_that_the_migrations_make(postgres_server: EmbeddedServer) -> None:
    for name in ("new", "by_migrations"):
        create(postgres_server, name)
        database = Database(url(postgres_server, name))
        if name == "by_migrations":
            await database.connect()
            async with database.transaction() as connection:
                await connection.run_sync(upgrade)
        else:
            await database.prepare()
        await database.close()
    dumped = dump(postgres_server, "new")
    assert dumped == dump(postgres_server, "by_migrations")
    assert any("alembic_version" in line and SCHEMA in line for line in dumped)


def test_every_table_says_what_it_holds_and_can_be_distributed_by_project() -> None:
    for table in metadata.tables.values():
        assert table.comment
        assert next(iter(table.primary_key.columns)).name == "project"
        assert not table.foreign_keys
        assert not [column for column in table.columns if column.identity or column.default]


def test_the_big_tables_have_one_level_of_partitions_inside_their_key() -> None:
    for table in PARTITIONED:
        by = re.fullmatch(r"RANGE \((\w+)\)", table.dialect_options["postgresql"]["partition_by"])
        assert by
        assert by[1] in table.primary_key.columns


async def test_preparing_twice_changes_nothing(database: Database, database_url: str) -> None:
    await database.prepare()
    again = Database(database_url)
    await asyncio.gather(again.prepare(), database.prepare())
    await again.close()


async def test_many_processes_may_prepare_an_empty_database_at_once(postgres_server: EmbeddedServer) -> None:
    create(postgres_server, "contested")
    rivals = [Database(url(postgres_server, "contested")) for _ in range(4)]
    await asyncio.gather(*(rival.prepare() for rival in rivals))
    for rival in rivals:
        await rival.close()


async def test_migrations_have_no_time_limit_where_the_role_has_one(
    postgres_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(postgres_server, "limited")
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    plain = Database(url(postgres_server, "limited"))
    await plain.connect()
    async with plain.connection() as connection:
        for limit in limits:
            await connection.execute(f"ALTER DATABASE limited SET {limit} = '9s'")
    await plain.close()
    seen: list[str] = []
    migrate = store.database.connection.migrate

    def watch(connection: Connection) -> None:
        seen.extend(connection.scalar(text(f"SHOW {limit}")) for limit in limits)
        migrate(connection)

    monkeypatch.setattr(store.database.connection, "migrate", watch)
    database = Database(url(postgres_server, "limited"))
    await database.prepare()
    async with database.connection() as connection:
        assert await connection.fetchval("SHOW statement_timeout") == "9s"
    # That of a lock is ours.
    assert seen == ["0", "5s", "0"]
    await database.close()


async def test_a_user_that_may_not_create_tables_learns_which_rights_it_needs(postgres_server: EmbeddedServer) -> None:
    create(postgres_server, "owned")
    owner = Database(url(postgres_server, "owned"))
    await owner.connect()
    async with owner.connection() as connection:
        await connection.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    await owner.close()
    guest = Database(url(postgres_server, "owned").replace("user=playhead", "user=guest"))
    with pytest.raises(DatabaseUnusable, match=r"permission denied for schema public.*ALTER DATABASE"):
        await guest.prepare()
    await guest.close()


async def test_a_schema_from_the_future_is_refused(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseUnusable, match=r"9999.*upgrade Playhead"):
        await database.prepare()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE TABLE calls (mine int)", 'relation "calls" already exists'),
        ("CREATE TABLE runs (mine int)", 'relation "runs" already exists'),
        ("ALTER DATABASE {} SET search_path = ''", "no schema has been selected to create in"),
    ],
)
async def test_a_database_that_others_use_is_refused(
    statement: str, reason: str, postgres_server: EmbeddedServer
) -> None:
    create(postgres_server, "others")
    others = Database(url(postgres_server, "others"))
    await others.connect()
    async with others.connection() as connection:
        await connection.execute(statement.format("others"))
    await others.close()
    database = Database(url(postgres_server, "others"))
    with pytest.raises(DatabaseUnusable, match=f"{reason}. Use a database in which nothing else has tables"):
        await database.prepare()
    await database.close()
    drop(postgres_server, "others")


async def test_an_upgrade_that_conflicts_with_an_older_store_server_is_tried_again(
    postgres_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a rolling update the older one still writes: Postgres ends one of the two transactions."""
    create(postgres_server, "updated")
    conflicts = [asyncpg.DeadlockDetectedError("deadlock detected"), asyncpg.LockNotAvailableError("lock timeout")]
    real_migrate = store.database.connection.migrate

    def migrate_beside_another(connection: Connection) -> None:
        if conflicts:
            raise conflicts.pop(0)
        real_migrate(connection)

    monkeypatch.setattr(store.database.connection, "migrate", migrate_beside_another)
    database = Database(url(postgres_server, "updated"))
    said: list[str] = []
    async with asyncio.timeout(60):
        await wait_until_prepared(database.prepare, database, said.append)
    assert "could not be upgraded beside another store server: deadlock detected. Retrying until it answers." in said[0]
    assert "could not be upgraded beside another store server: lock timeout. Retrying" in said[1]
    assert "is ready, after" in said[2]
    await database.close()
    drop(postgres_server, "updated")


async def test_an_upgrade_has_its_locks_before_it_changes_anything(
    postgres_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is met after hours of changing data, and not had in time, would take them back."""
    create(postgres_server, "locked")
    database, older = Database(url(postgres_server, "locked")), Database(url(postgres_server, "locked"))
    for one in (database, older):
        await one.connect()
    async with database.transaction() as connection:
        await connection.run_sync(partial(upgrade, target="0001"))
        tables = (await connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))).all()
    begun: list[str] = []
    change = command.upgrade

    def note_and_change(config: Config, target: str) -> None:
        begun.append(target)
        change(config, target)

    monkeypatch.setattr(command, "upgrade", note_and_change)

    async def try_upgrade() -> None:
        async with database.transaction() as connection:
            await connection.execute(text("SET LOCAL lock_timeout = '20ms'"))
            await connection.run_sync(upgrade)

    of_the_first_version = sorted({*tables} & {*metadata.tables})
    assert len(of_the_first_version) > 5
    for table in of_the_first_version:
        async with older.transaction() as writing:
            await writing.execute(text(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
            with pytest.raises(DatabaseUnavailable, match="lock timeout"):
                await try_upgrade()
    assert begun == []
    await database.prepare()
    assert begun == ["head"]
    for one in (database, older):
        await one.close()
    drop(postgres_server, "locked")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_text_is_refused(
    encoding: str, postgres_server: EmbeddedServer
) -> None:
    name = encoding.lower()
    console = Database(url(postgres_server, "postgres"))
    await console.connect()
    async with console.connection() as connection:
        await connection.execute(f"DROP DATABASE IF EXISTS {name}")
        await connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    await console.close()
    database = Database(url(postgres_server, name))
    with pytest.raises(DatabaseUnusable, match=f"encoding of the database is {encoding}.*use one with UTF8"):
        await database.prepare()
    await database.close()


async def test_a_database_that_is_not_there_is_unusable(postgres_server: EmbeddedServer) -> None:
    lost = Database(url(postgres_server, "nowhere"))
    with pytest.raises(DatabaseUnusable, match='"nowhere" does not exist'):
        await lost.prepare()
    await lost.close()


@pytest.mark.parametrize("dsn", ["postgresql:///x?host=/nowhere&user=x", "postgresql://x@127.0.0.1:1/x"])
async def test_a_server_that_does_not_answer_is_unavailable(dsn: str) -> None:
    lost = Database(dsn)
    with pytest.raises(DatabaseUnavailable):
        await lost.prepare()
    with pytest.raises(DatabaseUnavailable):
        async with lost.connection():
            pass
    await lost.close()


async def test_a_statement_that_is_never_answered_is_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.database.connection.COMMAND_TIMEOUT", 0.05)
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        async with database.transaction() as connection:
            await connection.execute(text("SELECT pg_sleep(600)"))


async def test_a_statement_that_gets_no_connection_is_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.engine.sync_engine.pool, "_timeout", 0)

    async def take_connections() -> None:
        async with AsyncExitStack() as held:
            for _ in range(100):
                await held.enter_async_context(database.transaction())

    with pytest.raises(DatabaseBusy, match="All connections"):
        await take_connections()


@pytest.mark.parametrize("dsn", ["mysql://x@y/z", "host=x dbname=y", ""])
def test_a_url_that_is_none_is_refused_with_an_example(dsn: str) -> None:
    with pytest.raises(DatabaseUnusable, match="postgresql://user"):
        Database(dsn)


@pytest.mark.parametrize(
    "rest",
    [
        "me:hunt/er2@db/calls",
        "me:hunt#er2@db/calls",
        "me:hunt?er2@db/calls",
        "me:hunt[er2@db/calls",
        "me:hunter2@db:port/calls",
        "me:hunter2@db:/calls",
        "me:hunter2@[::1/calls",
        "me:hunter2@db/calls?sslmode",
    ],
)
def test_a_url_that_nobody_could_connect_to_is_refused_without_quoting_it(rest: str) -> None:
    with pytest.raises(DatabaseUnusable, match="/ is %2F") as refusal:
        Database(f"postgresql://{rest}")
    assert not re.search("hunt|er2", str(refusal.value))
    assert url_without_password(f"postgresql://{rest}") == "postgresql://…"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("me:secret@db.example.com:5433/calls", "db.example.com:5433/calls"),
        ("me:se%2Fc@ret@db/calls?sslmode=require&application_name=", "db/calls"),
        (
            "me@a.example:5432,b.example:5433/calls?target_session_attrs=read-write",
            "a.example:5432,b.example:5433/calls",
        ),
        ("me:secret@[::1]:5432,[fe80::1%eth0]/calls", "[::1]:5432,[fe80::1%eth0]/calls"),
        ("/calls?host=/run/postgresql&user=me", "/calls"),
        ("%2Frun%2Fpostgresql/calls", "%2Frun%2Fpostgresql/calls"),
        ("", ""),
    ],
)
def test_an_address_that_may_be_shown_has_no_password(given: str, shown: str) -> None:
    assert Database(f"postgresql+asyncpg://{given}").url == f"postgresql://{given}"
    assert url_without_password(f"postgresql+asyncpg://{given}") == f"postgresql+asyncpg://{shown}"


@pytest.mark.parametrize(
    ("parameter", "reason"),
    [
        ("colour=red", 'unrecognized configuration parameter "colour"'),
        ("statement_timeout=soon", 'invalid value for parameter "statement_timeout"'),
        ("options=-c%20colour", "-c colour requires a value"),
    ],
)
async def test_a_parameter_that_postgres_refuses_is_named(
    postgres_server: EmbeddedServer, parameter: str, reason: str
) -> None:
    base = url(postgres_server, "postgres")
    database = Database(f"{base}{'&' if '?' in base else '?'}{parameter}")
    with pytest.raises(DatabaseUnusable, match=re.escape(f"a part of the database URL is invalid: {reason}")):
        await database.prepare()
    await database.close()


def test_the_version_in_the_code_is_the_newest_migration_s() -> None:
    assert known_versions()[0] == SCHEMA


async def test_tables_of_an_earlier_version_are_brought_to_ours_with_what_they_hold(
    postgres_server: EmbeddedServer,
) -> None:
    create(postgres_server, "earlier")
    database = Database(url(postgres_server, "earlier"))
    await database.connect()
    async with database.transaction() as connection:
        await connection.run_sync(partial(upgrade, target="0001"))
        for statement in DAY.split(";"):
            await connection.execute(text(statement))
        for id_, answer in CALLS.items():
            await connection.execute(text(CALL.format(id=id_, **answer)))
            await connection.execute(text(EXCHANGE.format(id=id_, **answer)))
    await database.prepare()
    async with database.transaction() as connection:
        columns = "run, provider, cost_usd, polls, first_byte, duration, traits"
        query = text(f"SELECT {columns}, {TRAITS_OF_COLUMNS} FROM calls ORDER BY id")
        rows = (await connection.execute(query)).all()
    for *values, traits, expected_traits in rows:
        assert values == ["night", "openai", None, None, 5, 9]
        assert traits == expected_traits
        assert trait_number("tool", "search") in traits
    failures = [trait_number("error", "true") in traits for *_, traits, _ in rows]
    assert failures == [answer["has_failed"] for answer in CALLS.values()]
    await database.close()


async def test_an_upgrade_has_the_index_of_words_made_anew(postgres_server: EmbeddedServer) -> None:
    create(postgres_server, "single_texts")
    database = Database(url(postgres_server, "single_texts"))
    await database.connect()
    async with database.transaction() as connection:
        await connection.run_sync(partial(upgrade, target="0028"))
        await connection.execute(text(POSITIONS))
    await database.prepare()
    async with database.transaction() as connection:
        assert (await connection.execute(text("SELECT consumer FROM feed_positions"))).scalars().all() == ["sums/5"]
    await database.close()


POSITIONS = """
INSERT INTO feed_positions SELECT 'default', consumer, 0, gen_random_uuid() FROM unnest(ARRAY['sums/5', 'texts/1']) AS consumer
"""

DAY = """
CREATE TABLE calls_day PARTITION OF calls
FOR VALUES FROM ('019aa000-0000-0000-0000-000000000000') TO ('019ab000-0000-0000-0000-000000000000');
CREATE TABLE exchanges_day PARTITION OF exchanges
FOR VALUES FROM ('019aa000-0000-0000-0000-000000000000') TO ('019ab000-0000-0000-0000-000000000000')
"""

EXCHANGE = """
INSERT INTO exchanges (project, id, run, started_at, first_byte_at, ended_at, method, url, status, outcome, truncated,
    redactions, request_digest, head, request_body)
VALUES ('default', '{id}', 'night', 1, 5, 9, 'POST', 'https://api.openai.com/', {status}, 'completed', {truncated}, 0, '', '', '')
"""

CALL = """
INSERT INTO calls (project, id, run, started_at, kind, provider, dialect, operation, host, outcome, streamed, complete,
    key, profile, status, model_requested, finish_reason, tools)
VALUES ('default', '{id}', 'night', 1, 'model', 'openai', 'openai_chat', 'chat', 'api.openai.com', 'completed', {streamed},
    {complete}, '\\x00', 'openai_chat/1', {status}, 'gpt-5', {finish}, ARRAY['search'])
"""

CALLS: Final[dict[str, dict[str, Any]]] = {
    f"019aa000-0000-7000-8000-00000000000{number}": dict(
        zip(("status", "streamed", "complete", "finish", "truncated", "has_failed"), answer, strict=True)
    )
    for number, answer in enumerate(
        (
            (429, "false", "true", "NULL", "false", True),
            (200, "true", "true", "'stop'", "false", False),
            (200, "true", "false", "NULL", "false", True),
            (200, "false", "true", "'failed'", "false", True),
            (101, "true", "false", "NULL", "false", False),
            (200, "true", "false", "NULL", "true", False),
            (500, "true", "false", "NULL", "true", True),
        )
    )
}
"""Calls of an earlier version, and whether this one says of them that they failed."""
