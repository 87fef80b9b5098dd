"""The version of the tables, for modules that do not import SQLAlchemy."""

from typing import Final

SCHEMA: Final = "0029"
"""The version of the tables, which is that of the newest migration (checked by a test)."""
