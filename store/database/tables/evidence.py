"""What was recorded: runs, their exchanges, and what else was seen of them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from store.database.tables.common import metadata, primary_key

runs = Table(
    "runs",
    metadata,
    Column("project", Text, nullable=False),
    Column("id", Text, nullable=False),
    # If it differs from the value that ingest remembers, the run was deleted meanwhile, with all its parts.
    Column("incarnation", Uuid, nullable=False),
    Column("name", Text),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("started_at", BigInteger, nullable=False),
    Column("newest_at", BigInteger, nullable=False),  # when its newest exchange began, which retention uses
    Column("active_at", BigInteger, nullable=False),  # the time of the last activity, from which idleness is counted
    Column("ended_at", BigInteger),  # reported by its wrapper; null in an idle run, which counts as ended too
    Column("pinned", Boolean, nullable=False, server_default=text("false")),
    Column("parent", Text),
    Column("forked_at", Integer),
    Column("profile", Text),  # digest of the profiles that made its keys
    Column(
        "isolation", Text
    ),  # captive, watched or none; null: unknown, for example if Playhead did not start the agent
    Column("idle_at", BigInteger),  # the last activity after which it fell idle, once that was noticed
    Column("salt", LargeBinary),  # of the newest commitment to what was said about it: `proof.commitments`
    Column(
        "encoding", Uuid
    ),  # changes when what is stored of it is encoded anew, so that caches of its parts forget them
    Column("bodies_erased_at", BigInteger),  # its newest exchange when retention last erased its bodies
    primary_key("id"),
    Index(None, "project", "started_at", "id"),
    # The forks of a run.
    Index("runs_parent_idx", "project", "parent", postgresql_where=text("parent IS NOT NULL")),
    comment="One agent's work from start to end.",
)
# Labels are looked up by containment (@>), which only this operator class serves with a small index.
Index("runs_labels_idx", runs.c.labels, postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"})

exchanges = Table(
    "exchanges",
    metadata,
    Column("project", Text, nullable=False),
    Column("id", Uuid, nullable=False),
    Column("run", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("first_byte_at", BigInteger),
    Column("ended_at", BigInteger),  # null: the worker died before the end
    Column("method", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("status", Integer),  # null: no response head came
    Column("outcome", Text, nullable=False),
    Column("truncated", Boolean, nullable=False),
    Column("redactions", Integer, nullable=False),
    # SHA-256 of the stored body, 32 bytes; null where the body was erased, with the body and the salt of its commitment.
    Column("request_digest", LargeBinary),
    Column("response_digest", LargeBinary),
    Column("head", LargeBinary, nullable=False),  # headers, chunks and other fields without a column: `rows`
    Column("request_body", LargeBinary),  # in a form of `blobs`
    Column("response_body", LargeBinary),
    Column("trace", Text),  # if only its connection's owner names the run: exchanges with the same trace are grouped
    Column(
        "ties", ARRAY(BigInteger)
    ),  # digests of ids it produces and refers to, without an explicit run: `attribution.correlation_ids`
    Column("attribution", SmallInteger),  # how certain it is that it belongs to its run (`attribution.certainty`)
    Column(
        "large", Boolean
    ),  # true: too large for the store server itself, handled by a helper process (`store.large`)
    Column(
        "salt", LargeBinary
    ),  # of the commitments to head and bodies (`proof.commitments`); null: stored without a proof
    Column("offloaded", Boolean),  # true: some of its bytes are in object storage (`objects`)
    primary_key("id"),
    # A run's exchanges in step order.
    Index(None, "project", "run", "started_at", "id"),
    Index(None, "project", "trace", postgresql_where=text("trace IS NOT NULL")),
    # Without the pending list (fastupdate), because lookups are mostly of rows that were just inserted.
    Index(
        "exchanges_ties_idx",
        "ties",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
        postgresql_where=text("ties IS NOT NULL"),
    ),
    # The large exchanges of a run.
    Index("exchanges_large_idx", "project", "run", postgresql_where=text("large")),
    # The runs that may be incomplete, as `calls_cut_idx`.
    Index("exchanges_unkept_idx", "project", "run", postgresql_where=text("truncated OR ended_at IS NULL")),
    postgresql_partition_by="RANGE (id)",
    comment="One HTTP request and its response as they crossed the wire, after redaction: the evidence.",
)

parts = Table(
    "parts",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("day", Date, nullable=False),  # the UTC day in the id of the exchange it was stored with
    Column("hash", LargeBinary, nullable=False),  # SHA-256 of the bytes, cut to 16 bytes
    Column("body", LargeBinary, nullable=False),
    # The run comes first, because a random hash would touch another page of the index for each row.
    primary_key("run", "day", "hash"),
    postgresql_partition_by="RANGE (day)",
    comment="Bytes of request bodies that later requests of the same run repeat; referred to by `exchanges.request_body`.",
)

gaps = Table(
    "gaps",
    metadata,
    Column("project", Text, nullable=False),
    Column("id", Uuid, nullable=False),  # a digest of the gap, so that a gap that is written twice is stored once
    Column("run", Text, nullable=False),
    Column("happened_at", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("exchange", Text),
    Column("evidence", LargeBinary),  # an exchange that the tables could not store: all of it, MessagePack in zstd
    Column("count", Integer, nullable=False, server_default=text("1")),  # how often, if several are reported as one
    Column("salt", LargeBinary),  # as of exchanges, of the gap and its evidence
    primary_key("id"),
    Index(None, "project", "run"),
    comment="Something passed, or may have passed, that is not among the exchanges.",
)

effects = Table(
    "effects",
    metadata,
    Column("project", Text, nullable=False),
    Column("id", Uuid, nullable=False),
    Column("run", Text, nullable=False),
    Column("observed_at", BigInteger, nullable=False),
    Column("process", Text, nullable=False),
    Column("number", Integer, nullable=False),  # the place of this batch among those of its process
    Column("count", Integer, nullable=False),  # how many effects it has
    Column("items", LargeBinary, nullable=False),  # canonical JSON, in a form of `blobs`
    Column("salt", LargeBinary),  # as of exchanges, of what it is and of its items
    primary_key("id"),
    Index(None, "project", "run", "process", "number"),
    # Questions to people (`store.questions`), by their time.
    Index("effects_people_idx", "project", "observed_at", "number", postgresql_where=text("process = 'person'")),
    comment="What the processes of a run got from elsewhere than the network, in batches.",
)

replays = Table(
    "replays",
    metadata,
    Column("project", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("report", LargeBinary, nullable=False),  # the JSON as the worker reported it, in a form of `blobs`
    primary_key("id"),
    comment="The newest report of each replay.",
)

processes = Table(
    "processes",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),  # the process's own run
    Column("is_divided", Boolean, nullable=False),  # whether its conversations have runs of their own
    Column("is_unclear", Boolean, nullable=False),  # whether the calls left in its own run may belong to any of them
    primary_key("run"),
    comment="Processes whose calls name no run, and whether they worked on several things at once.",
)
