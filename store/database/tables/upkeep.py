"""What the store server works by: the feed, the audit log, objects, expirations, canaries."""

from sqlalchemy import BigInteger, Column, Date, Index, Integer, LargeBinary, Table, Text, Uuid, text

from store.database.tables.common import metadata, primary_key

feed = Table(
    "feed",
    metadata,
    Column("project", Text, nullable=False),
    # The transaction that wrote it: rows are read in this order, and never before all smaller ones have ended.
    Column("transaction", BigInteger, nullable=False, server_default=text("(pg_current_xact_id())::text::bigint")),
    Column("id", Uuid, nullable=False),
    Column("stored_at", BigInteger, nullable=False),
    Column("entries", LargeBinary, nullable=False),  # `store.feed.entries`
    primary_key("transaction", "id"),
    # Old entries, which are deleted.
    Index(None, "project", "stored_at"),
    comment="What each transaction stored, for everything that follows the record.",
)

feed_positions = Table(
    "feed_positions",
    metadata,
    Column("project", Text, nullable=False),
    Column("consumer", Text, nullable=False),
    Column("transaction", BigInteger, nullable=False),
    Column("feed_row", Uuid, nullable=False),
    primary_key("consumer"),
    comment="Up to where each consumer has processed the feed; and up to where it has been deleted.",
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("project", Text, nullable=False),
    Column("id", Uuid, nullable=False),  # a uuidv7 of its time
    Column("token", Text),  # the name of the token; null without one
    Column("action", Text, nullable=False),
    Column("subject", Text),  # the run, call or exchange
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    primary_key("id"),
    comment="Who read bodies, exported, changed or deleted what, by the REST API.",
)

objects = Table(
    "objects",
    metadata,
    Column("project", Text, nullable=False),
    Column("address", LargeBinary, nullable=False),  # a keyed digest of its bytes: `objects.object_keys`
    Column("key_id", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),  # of its bytes, before they are compressed
    Column("generation", Uuid, nullable=False),  # differs if it was deleted and written again
    Column("touched_at", BigInteger, nullable=False),  # when somebody last began to write it
    primary_key("address"),
    comment="What object storage has, or is about to have. A row is there before its object, and is locked while the object is deleted.",
)

object_uses = Table(
    "object_uses",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("day", Date, nullable=False),  # as of parts
    Column("address", LargeBinary, nullable=False),
    primary_key("run", "day", "address"),
    Index(None, "project", "address"),
    comment="Which objects the exchanges and parts of a run and day name.",
)

expirations = Table(
    "expirations",
    metadata,
    Column("project", Text, nullable=False),
    Column("day", Date, nullable=False),
    Column("run", Text, nullable=False),
    Column("part", Text, nullable=False),  # run: all of it; bodies; erased: files only
    primary_key("day", "run", "part"),
    Index(None, "project", "run"),
    comment="What retention has decided and not yet removed from the partitions.",
)

canaries = Table(
    "canaries",
    metadata,
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),  # JSON of `calls.canary.canary_state`
    primary_key("name"),
    comment="Models that are asked the same again and again: counts and digests of their answers.",
)
