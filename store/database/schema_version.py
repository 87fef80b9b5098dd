"""Which tables this Playhead knows, for those who do not speak with Postgres themselves."""

from typing import Final

SCHEMA: Final = "0011"
"""The version of our tables: the newest migration's (a test says so)."""
