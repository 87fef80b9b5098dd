"""Migrate the tables of a database with alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def upgrade(connection: Connection, target: str = "head") -> str | None:
    """Run the missing migrations. If the tables' version is unknown, change nothing and return it."""
    config = _config()
    config.attributes["connection"] = connection
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found not in known_versions():
        return found
    command.upgrade(config, target)
    return None


def known_versions() -> tuple[str, ...]:
    """The versions that have a migration, newest first."""
    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
