"""The version of the tables, for modules that do not import SQLAlchemy."""

from typing import Final

SCHEMA: Final = "0011"
"""The version of our tables: the newest migration's (a test says so)."""
