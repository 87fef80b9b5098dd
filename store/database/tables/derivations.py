"""What follows from the evidence and can be derived again: calls, sums and the index of words."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TSVECTOR

from store.database.tables.common import metadata, primary_key

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
    # What its answer says of the call beside its status, or that its end was not recorded (`calls.model.AnswerState`); mostly null.
    Column("answer_state", Text),
    primary_key("id"),
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
    primary_key("run"),
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
    primary_key("run", "hour", "place"),
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
    primary_key("day", "cube", "place"),
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
    primary_key("day"),
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
    primary_key("day"),
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
    primary_key("key", "started_at", "id"),
    # Those of a day.
    Index(None, "project", "started_at"),
    comment="The answers of models on the days of `model_days`, by which the previous answer to a request is found.",
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
    primary_key("run", "day", "id"),
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
    primary_key("run", "day", "hash"),
    postgresql_partition_by="RANGE (day)",
    comment="Which texts `text_groups` has, so that each is stored once.",
)
