"""Migrate the tables of a database with alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text


def upgrade(connection: Connection, target: str = "head") -> str | None:
    """Run the missing migrations. If the tables' version is unknown, change nothing and return it."""
    config = _config()
    config.attributes["connection"] = connection
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found not in known_versions():
        return found
    _lock_tables(connection)
    command.upgrade(config, target)
    return None


def _lock_tables(connection: Connection) -> None:
    """Lock what the migrations may change before they change anything.

    In a rolling update an older store server still uses the tables. A lock that is met after a long migration of data, and not had in
    time, would take back all of it, each time it is tried.
    """
    # What a store server that is up to date does not need.
    from store.database.tables import metadata

    query = text(
        "SELECT name FROM unnest(CAST(:names AS text[])) name WHERE to_regclass(quote_ident(name)) IS NOT NULL"
    )
    tables = connection.scalars(query, {"names": sorted(metadata.tables)}).all()
    if tables:
        listed = ", ".join(f'"{name}"' for name in tables)
        connection.execute(text(f"LOCK TABLE {listed} IN ACCESS EXCLUSIVE MODE"))


def known_versions() -> tuple[str, ...]:
    """The versions that have a migration, newest first."""
    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
