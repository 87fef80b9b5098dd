"""The tables for SQLAlchemy Core. The migrations create them; a test checks that both are equal.

Rules that let the same schema run on one machine, on managed Postgres and on Citus: ids are made by clients, no
sequences; every table has `project` and every primary key begins with it, so that distributing a table by project
changes no statement; no foreign keys, no triggers; big tables have one level of partitions, by the day in a uuidv7 (or
that day itself), so that a day is dropped and not deleted. Bytes are `bytea` in the forms of `blobs` and `rows`, never
jsonb. Times are nanoseconds since the Unix epoch, or since the exchange began, as they were recorded.

common       what all tables have in common
evidence     what was recorded
derivations  what follows from it and can be derived again
proof        what proves it
upkeep       what the store server works by
"""

from sqlalchemy import DDL, Table
from sqlalchemy.event import listen

from store.database.tables.common import metadata as metadata
from store.database.tables.derivations import call_sums as call_sums
from store.database.tables.derivations import calls as calls
from store.database.tables.derivations import day_sums as day_sums
from store.database.tables.derivations import model_answers as model_answers
from store.database.tables.derivations import model_days as model_days
from store.database.tables.derivations import run_totals as run_totals
from store.database.tables.derivations import summed_days as summed_days
from store.database.tables.derivations import text_groups as text_groups
from store.database.tables.derivations import text_hashes as text_hashes
from store.database.tables.evidence import effects as effects
from store.database.tables.evidence import exchanges as exchanges
from store.database.tables.evidence import gaps as gaps
from store.database.tables.evidence import parts as parts
from store.database.tables.evidence import processes as processes
from store.database.tables.evidence import replays as replays
from store.database.tables.evidence import runs as runs
from store.database.tables.proof import anchors as anchors
from store.database.tables.proof import chain_records as chain_records
from store.database.tables.proof import chains as chains
from store.database.tables.proof import checkpoints as checkpoints
from store.database.tables.proof import tree_leaves as tree_leaves
from store.database.tables.proof import tree_tiles as tree_tiles
from store.database.tables.upkeep import audit_log as audit_log
from store.database.tables.upkeep import canaries as canaries
from store.database.tables.upkeep import expirations as expirations
from store.database.tables.upkeep import feed as feed
from store.database.tables.upkeep import feed_positions as feed_positions
from store.database.tables.upkeep import object_uses as object_uses
from store.database.tables.upkeep import objects as objects

PARTITIONED = (exchanges, calls, parts, text_groups, text_hashes)
"""The tables with daily partitions. Of days that are older than a version of the tables, some have none."""


def _alter_column(table: Table, column: str, change: str) -> None:
    listen(table, "after_create", DDL(f"ALTER TABLE {table.name} ALTER COLUMN {column} SET {change}"))  # type: ignore[no-untyped-call]


# Digests are random, the others are in zstd, and vectors of words shrink little: trying to compress them takes as long as storing them.
for _table, _columns in (
    (chain_records, ("records",)),
    (exchanges, ("head", "request_body", "response_body")),
    (parts, ("body",)),
    (calls, ("summary",)),
    (feed, ("entries",)),
    (text_groups, ("words", "texts")),
):
    for _column in _columns:
        _alter_column(_table, _column, "STORAGE EXTERNAL")

UNCOUNTED = {"text_groups": "words"}
"""Columns of which Postgres makes no statistics. Partitions do not inherit that."""

for _name, _column in UNCOUNTED.items():
    _alter_column(metadata.tables[_name], _column, "STATISTICS 0")
