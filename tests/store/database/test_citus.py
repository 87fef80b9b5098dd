"""The tables can be distributed by project: what Citus demands of keys, conflict targets and dependencies holds."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.database.connection import Database

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "citus.sql"
DISTRIBUTED = re.compile(r"create_distributed_table\('(\w+)', 'project'(?:, colocate_with => '(\w+)')?\)")
TARGET = re.compile(r"ON CONFLICT\s*\(([^)]*)\)")

# Without partitions, which are as their tables.
TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'alembic_version'
"""

UNIQUE_WITHOUT_PROJECT = """
SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
WHERE relnamespace = 'public'::regnamespace AND relname <> 'alembic_version' AND indisunique AND NOT EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = indrelid AND attname = 'project' AND attnum = ANY (indkey::smallint[])
)
"""

WITHOUT_PRIMARY_KEY = """
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
    AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)
"""

FORBIDDEN = """
SELECT conname::text FROM pg_constraint WHERE contype IN ('f', 'x') AND connamespace = 'public'::regnamespace
UNION ALL SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT relname::text FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace
"""


async def fetch_names(database: Database, statement: str) -> set[str]:
    async with database.connection() as connection:
        return {row[0] for row in await connection.fetch(statement)}


async def test_every_unique_key_has_the_project(database: Database) -> None:
    assert not await fetch_names(database, UNIQUE_WITHOUT_PROJECT)


async def test_a_unique_key_without_the_project_is_found(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("CREATE UNIQUE INDEX strange ON gaps (id)")
    assert await fetch_names(database, UNIQUE_WITHOUT_PROJECT) == {"strange"}


async def test_every_table_has_a_primary_key(database: Database) -> None:
    assert not await fetch_names(database, WITHOUT_PRIMARY_KEY)


async def test_there_are_no_foreign_keys_exclusions_triggers_and_sequences(database: Database) -> None:
    assert not await fetch_names(database, FORBIDDEN)


async def test_a_trigger_or_sequence_is_found(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("CREATE SEQUENCE strange")
    assert await fetch_names(database, FORBIDDEN) == {"strange"}


async def test_the_script_distributes_every_table(database: Database) -> None:
    listed = DISTRIBUTED.findall(SCRIPT.read_text())
    assert {name for name, _ in listed} == await fetch_names(database, TABLES)
    assert len(listed) == len({name for name, _ in listed})
    assert [with_what for _, with_what in listed] == ["", *["runs"] * (len(listed) - 1)]


def conflict_targets(source: str) -> Iterator[str]:
    """The conflict targets of the statements in a module, written in SQL or given to SQLAlchemy."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from TARGET.findall(node.value)
        elif isinstance(node, ast.keyword) and node.arg == "index_elements":
            yield ast.unparse(node.value)


MODULES = sorted(path for path in (ROOT / "store").rglob("*.py") if "migrations" not in path.parts)


def test_every_conflict_target_has_the_project() -> None:
    targets = [(path.name, target) for path in MODULES for target in conflict_targets(path.read_text())]
    assert len(targets) > 5
    assert not [one for one in targets if not re.search(r"\bproject\b", one[1])]


@pytest.mark.parametrize(
    "source", ["A = 'INSERT INTO runs VALUES (1) ON CONFLICT (id) DO NOTHING'", "f(index_elements=['id'])"]
)
def test_a_conflict_target_without_the_project_is_found(source: str) -> None:
    [target] = conflict_targets(source)
    assert "project" not in target
