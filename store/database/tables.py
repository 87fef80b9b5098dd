"""The tables for SQLAlchemy Core. The migrations create them; a test checks that both are equal.

Rules that let the same schema run on one machine, on managed Postgres and on Citus: ids are made by clients, no
sequences; every table has `project` and every primary key begins with it, so that distributing a table by project
changes no statement; no foreign keys, no triggers; big tables have one level of partitions, by the day in a uuidv7 (or
that day itself), so that a day is dropped and not deleted. Bytes are `bytea` in the forms of `blobs` and `rows`, never
jsonb. Times are nanoseconds since the Unix epoch, or since the exchange began, as they were recorded.
"""

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    Date,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TSVECTOR
from sqlalchemy.event import listen

metadata = MetaData(naming_convention={"pk": "%(table_name)s_pkey", "ix": "%(table_name)s_%(column_0_N_name)s_idx"})


def _primary_key(*columns: str) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint("project", *columns)


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
    _primary_key("id"),
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
    _primary_key("id"),
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
    _primary_key("run", "day", "hash"),
    postgresql_partition_by="RANGE (day)",
    comment="Bytes of request bodies that later requests of the same run repeat; referred to by `exchanges.request_body`.",
)

calls = Table(
    "calls",
    metadata,
    Column("project", Text, nullable=False),
    Column("id", Uuid, nullable=False),  # the exchange's
    Column("run", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("status", Integer),
    Column("outcome", Text, nullable=False),
    Column("model_requested", Text),
    Column("model_returned", Text),
    Column("tools", ARRAY(Text)),  # names of the tools that the answer requests
    Column("finish_reason", Text),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("streamed", Boolean, nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("profile", Text, nullable=False),
    Column("cost_usd", Numeric),
    Column("prices", Text),  # the source of the cost: a version of the price tables, or the provider
    Column("polls", Text),  # id of the work whose state the request asks for
    Column(
        "pending", Text
    ),  # id of the work that the answer leaves unfinished; `polls` and `pending` join exchanges to one call
    Column("created_ids", ARRAY(Text)),  # ids that the answer creates: of requested tool calls, of a response
    Column(
        "returned_ids", ARRAY(Text)
    ),  # ids that the request returns; by these and `created_ids`, calls follow one another
    Column("fingerprint", Text),  # the provider's fingerprint of the model's configuration
    Column(
        "answer", LargeBinary
    ),  # digest of the answer's meaning (`calls.comparison.answer_fingerprint`), cut to 16 bytes
    Column(
        "summary", LargeBinary
    ),  # the parts of its call that lists show and that have no column (`store.large.summary`); null: they are derived
    Column("actor", Text),
    # Nanoseconds until the response's head and until the end of the exchange; null where that is unknown.
    Column("first_byte", BigInteger),
    Column("duration", BigInteger),
    Column("traits", ARRAY(Integer)),  # numbers of the values that it is filtered by: `database.traits`
    Column(
        "failed", Boolean
    ),  # true: its call failed, as far as attempts are known (`sums.attempt_marks`); never false
    # As `failed`: a later exchange is of the same call; the exchange is a poll that repeats an answer.
    Column("superseded", Boolean),
    Column("repeated", Boolean),
    _primary_key("id"),
    # A run's calls in step order, and whether a run has a call of some kind.
    Index(None, "project", "run", "started_at", "id"),
    # All calls, newest first.
    Index(None, "project", "started_at", "id"),
    # Filters that select few of many rows; for others, walking the newest rows is fast enough.
    Index("calls_traits_idx", "traits", postgresql_using="gin"),
    # The runs with an answer that the server broke off.
    Index(
        "calls_cut_idx",
        *("project", "run"),
        postgresql_where=text("outcome IN ('server_closed', 'timed_out') AND status IS NOT NULL AND NOT complete"),
    ),
    # The calls that failed, without the attempts that a later one made good.
    Index("calls_failed_idx", "project", "started_at", "id", postgresql_where=text("failed")),
    # Few of them have a cost, so the index of costs would be read nearly whole.
    Index(
        "calls_failed_cost_idx", "project", "cost_usd", "id", postgresql_where=text("failed AND cost_usd IS NOT NULL")
    ),
    # Lists that are sorted by something else than time.
    Index("calls_cost_idx", "project", "cost_usd", "id", postgresql_where=text("cost_usd IS NOT NULL")),
    Index("calls_duration_idx", "project", "duration", "id", postgresql_where=text("duration IS NOT NULL")),
    Index(
        "calls_tokens_idx",
        "project",
        text("(coalesce(input_tokens, 0) + coalesce(output_tokens, 0))"),
        "id",
        postgresql_where=text("input_tokens IS NOT NULL OR output_tokens IS NOT NULL"),
    ),
    # Which models answered, and when: grouped by the index alone.
    Index(
        "calls_models_idx",
        *("project", "provider", "model_requested", "model_returned", "fingerprint", "started_at", "id"),
        postgresql_where=text("kind = 'model' AND status < 300"),
    ),
    postgresql_partition_by="RANGE (id)",
    comment="What an exchange meant, as far as it is filtered or summed by. Derived; the rest is derived when it is read.",
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
    _primary_key("id"),
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
    _primary_key("id"),
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
    _primary_key("id"),
    comment="The newest report of each replay.",
)

processes = Table(
    "processes",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),  # the process's own run
    Column("is_divided", Boolean, nullable=False),  # whether its conversations have runs of their own
    Column("is_unclear", Boolean, nullable=False),  # whether the calls left in its own run may belong to any of them
    _primary_key("run"),
    comment="Processes whose calls name no run, and whether they worked on several things at once.",
)

feed = Table(
    "feed",
    metadata,
    Column("project", Text, nullable=False),
    # The transaction that wrote it: rows are read in this order, and never before all smaller ones have ended.
    Column("transaction", BigInteger, nullable=False, server_default=text("(pg_current_xact_id())::text::bigint")),
    Column("id", Uuid, nullable=False),
    Column("stored_at", BigInteger, nullable=False),
    Column("entries", LargeBinary, nullable=False),  # `store.feed.entries`
    _primary_key("transaction", "id"),
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
    _primary_key("consumer"),
    comment="Up to where each consumer has processed the feed; and up to where it has been deleted.",
)

run_totals = Table(
    "run_totals",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("errors", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),  # input and output
    Column("cost_usd", Numeric),  # the sum of those that are known
    Column("duration", BigInteger, nullable=False),  # from its start to the end of its last exchange
    # Null from here on in rows that an older version made.
    Column("exchanges", Integer),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("unpriced", Integer),
    Column("models", ARRAY(Text)),
    Column("attribution", SmallInteger),  # the least certain one of its exchanges
    Column("facets", ARRAY(Text)),  # what its calls have, such as `model=gpt-5`: `sums.run_facets`
    Column("is_cut", Boolean),  # whether it has more of these
    Column("traits", ARRAY(Integer)),  # the numbers of the facets: `database.traits`
    _primary_key("run"),
    Index(None, "project", "cost_usd", "run"),
    Index(None, "project", "duration", "run"),
    Index(None, "project", "tokens", "run"),
    # Filters of runs.
    Index("run_totals_traits_idx", "traits", postgresql_using="gin"),
    Index("run_totals_cut_idx", "project", "run", postgresql_where=text("is_cut")),
    comment="Sums of each run, by which lists are sorted and filtered. Made from `calls`, a moment later.",
)

call_sums = Table(
    "call_sums",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("hour", BigInteger, nullable=False),  # when it began, in nanoseconds since the Unix epoch
    Column("place", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("model", Text),  # the requested one, else the returned one
    Column("model_returned", Text),
    Column("actor", Text),
    Column("status", Integer),
    Column("tools", ARRAY(Text)),  # requested by a model, or the tool that was called
    Column("calls", Integer, nullable=False),
    Column("exchanges", Integer, nullable=False),
    Column("errors", Integer, nullable=False),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("cost_usd", Numeric),
    Column("unpriced", Integer, nullable=False),
    Column("first_bytes", ARRAY(SmallInteger)),  # the class of each latency: `sums.latency_classes`
    Column("durations", ARRAY(SmallInteger)),
    _primary_key("run", "hour", "place"),
    Index(None, "project", "hour"),
    comment="Sums of the calls of a run that have the same traits and began in the same hour. Made from `calls`, a moment later.",
)

day_sums = Table(
    "day_sums",
    metadata,
    Column("project", Text, nullable=False),
    Column("day", BigInteger, nullable=False),  # when it began, in nanoseconds since the Unix epoch
    Column("cube", SmallInteger, nullable=False),  # which of the traits are told apart; the others are null
    Column("place", Integer, nullable=False),
    Column("hour", BigInteger),
    Column("run", Text),
    Column("kind", Text),
    Column("provider", Text),
    Column("dialect", Text),
    Column("operation", Text),
    Column("host", Text),
    Column("model", Text),
    Column("model_returned", Text),
    Column("actor", Text),
    Column("status", Integer),
    Column("tools", ARRAY(Text)),
    Column("calls", BigInteger, nullable=False),
    Column("exchanges", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("cost_usd", Numeric),
    Column("unpriced", BigInteger, nullable=False),
    Column("first_bytes", ARRAY(SmallInteger)),  # each class of latency once
    Column("first_byte_counts", ARRAY(Integer)),  # how many exchanges are in it
    Column("durations", ARRAY(SmallInteger)),
    Column("duration_counts", ARRAY(Integer)),
    Column("labels", JSONB),  # those of the runs
    Column("cost_class", SmallInteger),  # of the exchanges: `sums.value_classes`
    Column("duration_class", SmallInteger),
    Column("is_failed", Boolean),  # whether the exchanges failed
    _primary_key("day", "cube", "place"),
    comment="Sums of the calls of all runs on a day that is over. Made from `call_sums`, some minutes later.",
)

summed_days = Table(
    "summed_days",
    metadata,
    Column("project", Text, nullable=False),
    Column("day", BigInteger, nullable=False),
    Column("is_valid", Boolean, nullable=False),  # whether `day_sums` has the sums of what `call_sums` has now
    Column("changes", BigInteger, nullable=False),  # how often `call_sums` has changed
    Column("changed_at", BigInteger, nullable=False),  # when it changed last, in nanoseconds since the Unix epoch
    _primary_key("day"),
    comment="The days of `call_sums`, and which of them `day_sums` has.",
)

model_days = Table(
    "model_days",
    metadata,
    Column("project", Text, nullable=False),
    Column("day", BigInteger, nullable=False),
    Column("changes", BigInteger, nullable=False),  # those of `summed_days` when it was made
    Column("variants", LargeBinary),  # MessagePack of `drift.variants`; null: too many to be stored
    Column("linked_at", BigInteger),  # the changes of this day and all before it when its repeats were found
    Column("repeats", LargeBinary),  # MessagePack of `drift.variants`
    _primary_key("day"),
    comment="Which models answered on a day that is over, and how often they repeated and changed an answer. Made from `calls`.",
)

model_answers = Table(
    "model_answers",
    metadata,
    Column("project", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),  # that of the call, cut to 16 bytes
    Column("started_at", BigInteger, nullable=False),
    Column("id", Uuid, nullable=False),
    Column("variant", Integer, nullable=False),  # its place among the variants of its day in `model_days`
    Column("answer", LargeBinary, nullable=False),  # as in `calls`
    _primary_key("key", "started_at", "id"),
    # Those of a day.
    Index(None, "project", "started_at"),
    comment="The answers of models on the days of `model_days`, by which the previous answer to a request is found.",
)

texts = Table(
    "texts",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("day", Date, nullable=False),  # the UTC day in the id of its call
    Column("hash", LargeBinary, nullable=False),  # SHA-256 of role and text, cut to 16 bytes
    Column("call", Uuid, nullable=False),  # the first call of the run, on that day, that has it
    Column("started_at", BigInteger, nullable=False),
    Column("role", Text, nullable=False),  # prompt, answer, arguments or result
    Column("text", LargeBinary, nullable=False),  # in a form of `blobs`
    Column("words", TSVECTOR, nullable=False),  # `search.words`
    _primary_key("run", "day", "hash"),
    # Words that most texts have are found by walking the newest texts, the others by their index.
    Index(None, "project", "day", "started_at"),
    Index("texts_words_idx", "words", postgresql_using="gin"),
    postgresql_partition_by="RANGE (day)",
    comment="What was said in a run, as it was stored before there were `text_groups`. Nothing is added.",
)

text_groups = Table(
    "text_groups",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("day", Date, nullable=False),  # the UTC day in the ids of its calls
    Column("id", Uuid, nullable=False),
    Column("newest_at", BigInteger, nullable=False),  # when the newest of its calls began
    Column("words", TSVECTOR, nullable=False),  # those of all its texts, without places: `search.words`
    Column("texts", LargeBinary, nullable=False),  # `search.groups`, in a form of `blobs`
    _primary_key("run", "day", "id"),
    # Words that most texts have are found by walking the newest groups, the others by their index.
    Index(None, "project", "day", "newest_at"),
    Index("text_groups_words_idx", "words", postgresql_using="gin"),
    postgresql_partition_by="RANGE (day)",
    comment="What was said in a run, some texts together, for searches. Made from `exchanges`, a moment later.",
)

text_hashes = Table(
    "text_hashes",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("day", Date, nullable=False),
    Column("hash", LargeBinary, nullable=False),  # SHA-256 of role and text, cut to 16 bytes
    Column("call", Uuid, nullable=False),  # the first call of the run, on that day, that has it
    Column("text_group", Uuid, nullable=False),  # where it is in `text_groups`
    _primary_key("run", "day", "hash"),
    postgresql_partition_by="RANGE (day)",
    comment="Which texts `text_groups` has, so that each is stored once.",
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
    _primary_key("id"),
    comment="Who read bodies, exported, changed or deleted what, by the REST API.",
)

chains = Table(
    "chains",
    metadata,
    Column("project", Text, nullable=False),
    Column("incarnation", Uuid, nullable=False),  # of its run
    Column("server", Uuid, nullable=False),  # the store server that appends to it
    Column("size", BigInteger, nullable=False),
    Column("head", LargeBinary, nullable=False),  # the link of its last record: `proof.records`
    Column("is_unsealed", Boolean, nullable=False),  # whether it has records that are in no leaf of the tree
    Column("is_urgent", Boolean, nullable=False),  # whether one of these is of the end of its run, or of an erasure
    _primary_key("incarnation", "server"),
    Index("chains_unsealed_idx", "project", "server", postgresql_where=text("is_unsealed")),
    # Each batch of a run updates its row, which changes no index while there is room in the page.
    postgresql_with={"fillfactor": 70},
    comment="The hash chain of each run and store server: how many records it has, and its head.",
)

chain_records = Table(
    "chain_records",
    metadata,
    Column("project", Text, nullable=False),
    Column("incarnation", Uuid, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("first", BigInteger, nullable=False),  # the place of the first of these records in its chain
    Column("records", LargeBinary, nullable=False),  # MessagePack of `proof.records`
    Column("link", LargeBinary, nullable=False),  # of the last of them
    _primary_key("incarnation", "server", "first"),
    comment="The records of hash chains: salted commitments to what was stored, without its content.",
)

tree_leaves = Table(
    "tree_leaves",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("incarnation", Uuid, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("head", LargeBinary, nullable=False),
    _primary_key("server", "place"),
    Index(None, "project", "incarnation", "server", "place"),
    comment="The heads of chains in the order in which they entered the tree of their store server.",
)

tree_tiles = Table(
    "tree_tiles",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("level", Integer, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("hashes", LargeBinary, nullable=False),  # SHA-256, 32 bytes each
    _primary_key("server", "level", "place"),
    comment="The hashes of the tree, up to 256 a row (C2SP tlog-tiles).",
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("signed_at", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    _primary_key("server", "size"),
    comment="Signed roots of the tree (C2SP tlog-checkpoint).",
)

anchors = Table(
    "anchors",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("size", BigInteger, nullable=False),  # of the checkpoint
    Column("kind", Text, nullable=False),  # witness, timestamp
    Column("by", Text, nullable=False),  # the name of the witness, or the URL of the authority
    Column("at", BigInteger, nullable=False),  # when it says to have signed
    Column("content", LargeBinary, nullable=False),  # a line of a signed note, or a response in DER
    _primary_key("server", "size", "kind", "by"),
    Index(None, "project", "server", "kind", "by", "size"),  # the newest of each
    comment="Cosignatures of checkpoints by witnesses (C2SP tlog-witness), and timestamps of RFC 3161.",
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
    _primary_key("address"),
    comment="What object storage has, or is about to have. A row is there before its object, and is locked while the object is deleted.",
)

object_uses = Table(
    "object_uses",
    metadata,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("day", Date, nullable=False),  # as of parts
    Column("address", LargeBinary, nullable=False),
    _primary_key("run", "day", "address"),
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
    _primary_key("day", "run", "part"),
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
    _primary_key("name"),
    comment="Models that are asked the same again and again: counts and digests of their answers.",
)

GROWING = (exchanges, calls, parts, text_groups, text_hashes)
"""The tables that get daily partitions."""

PARTITIONED = (*GROWING, texts)
"""The tables with daily partitions. Of days that are newer or older than a version of the tables, some have none."""


def _alter_column(table: Table, column: str, change: str) -> None:
    listen(table, "after_create", DDL(f"ALTER TABLE {table.name} ALTER COLUMN {column} SET {change}"))  # type: ignore[no-untyped-call]


# Digests are random, the others are in zstd, and vectors of words shrink little: trying to compress them takes as long as storing them.
for _table, _columns in (
    (chain_records, ("records",)),
    (exchanges, ("head", "request_body", "response_body")),
    (parts, ("body",)),
    (calls, ("summary",)),
    (feed, ("entries",)),
    (texts, ("text", "words")),
    (text_groups, ("words", "texts")),
):
    for _column in _columns:
        _alter_column(_table, _column, "STORAGE EXTERNAL")

UNCOUNTED = {"texts": "words", "text_groups": "words"}
"""Columns of which Postgres makes no statistics. Partitions do not inherit that."""

for _name, _column in UNCOUNTED.items():
    _alter_column(metadata.tables[_name], _column, "STATISTICS 0")
