"""Add what queries need: more columns of calls, the feed, sums, the index of words, the audit log."""

from alembic import op

revision = "0013"
down_revision = "0012"

CALLS = """
ALTER TABLE calls ADD COLUMN actor text, ADD COLUMN first_byte bigint, ADD COLUMN duration bigint,
    ADD COLUMN traits integer[];
UPDATE calls SET
    first_byte = exchanges.first_byte_at,
    -- A response without the time of its first byte was imported, and has no time of its end either.
    duration = CASE WHEN exchanges.first_byte_at IS NOT NULL OR exchanges.status IS NULL THEN exchanges.ended_at END,
    traits = (
        SELECT array_agg(DISTINCT ('x' || substr(md5(trait), 1, 8))::bit(32)::integer ORDER BY
            ('x' || substr(md5(trait), 1, 8))::bit(32)::integer)
        FROM unnest(ARRAY[
            'kind=' || calls.kind, 'provider=' || calls.provider, 'dialect=' || calls.dialect,
            'operation=' || calls.operation, 'host=' || calls.host, 'model=' || calls.model_requested,
            'model=' || calls.model_returned, 'status=' || calls.status,
            'status=' || left(calls.status::text, 1) || 'xx', 'key=' || encode(calls.key, 'hex'),
            CASE WHEN NOT calls.complete THEN 'incomplete=true' END,
            CASE WHEN calls.kind = 'tool' THEN 'tool=' || calls.operation END,
            CASE WHEN calls.kind = 'tool' THEN 'tool=' || calls.host END,
            CASE WHEN calls.status IS NULL OR calls.status >= 400
                OR (calls.outcome IN ('server_closed', 'timed_out', 'refused') AND NOT calls.complete)
                THEN 'error=true' END
        ] || ARRAY(SELECT 'tool=' || tool FROM unnest(calls.tools) AS tool)) AS trait
        WHERE trait IS NOT NULL
    )
FROM exchanges WHERE exchanges.project = calls.project AND exchanges.id = calls.id;
DROP INDEX calls_project_host_started_at_idx;
DROP INDEX calls_project_model_requested_started_at_idx;
DROP INDEX calls_failed_idx;
CREATE INDEX calls_traits_idx ON calls USING gin (traits);
CREATE INDEX runs_parent_idx ON runs (project, parent) WHERE parent IS NOT NULL;
CREATE INDEX exchanges_unkept_idx ON exchanges (project, run) WHERE truncated OR ended_at IS NULL;
CREATE INDEX calls_cut_idx ON calls (project, run)
    WHERE outcome IN ('server_closed', 'timed_out') AND status IS NOT NULL AND NOT complete;
CREATE INDEX calls_cost_idx ON calls (project, cost_usd, id) WHERE cost_usd IS NOT NULL;
CREATE INDEX calls_duration_idx ON calls (project, duration, id) WHERE duration IS NOT NULL;
CREATE INDEX calls_tokens_idx ON calls (project, (coalesce(input_tokens, 0) + coalesce(output_tokens, 0)), id)
    WHERE input_tokens IS NOT NULL OR output_tokens IS NOT NULL
"""

RUNS = """
ALTER TABLE runs ADD COLUMN idle_at bigint;
UPDATE runs SET idle_at = active_at WHERE ended_at IS NULL
"""

FEED = """
CREATE TABLE feed (
    project text NOT NULL,
    transaction bigint DEFAULT (pg_current_xact_id())::text::bigint NOT NULL,
    id uuid NOT NULL,
    stored_at bigint NOT NULL,
    entries bytea NOT NULL,
    CONSTRAINT feed_pkey PRIMARY KEY (project, transaction, id)
);
CREATE INDEX feed_project_stored_at_idx ON feed (project, stored_at);
COMMENT ON TABLE feed IS 'What each transaction stored, for everything that follows the record.';
CREATE TABLE feed_positions (
    project text NOT NULL,
    consumer text NOT NULL,
    transaction bigint NOT NULL,
    feed_row uuid NOT NULL,
    CONSTRAINT feed_positions_pkey PRIMARY KEY (project, consumer)
);
COMMENT ON TABLE feed_positions IS
    'Up to where each consumer has processed the feed; and up to where it has been deleted.'
"""

SUMS = """
CREATE TABLE run_totals (
    project text NOT NULL,
    run text NOT NULL,
    started_at bigint NOT NULL,
    calls integer NOT NULL,
    errors integer NOT NULL,
    tokens bigint NOT NULL,
    cost_usd numeric,
    duration bigint NOT NULL,
    CONSTRAINT run_totals_pkey PRIMARY KEY (project, run)
);
CREATE INDEX run_totals_project_cost_usd_run_idx ON run_totals (project, cost_usd, run);
CREATE INDEX run_totals_project_duration_run_idx ON run_totals (project, duration, run);
CREATE INDEX run_totals_project_tokens_run_idx ON run_totals (project, tokens, run);
COMMENT ON TABLE run_totals IS
    'Sums of each run, by which lists are sorted and filtered. Made from `calls`, a moment later.';
CREATE TABLE call_sums (
    project text NOT NULL,
    run text NOT NULL,
    hour bigint NOT NULL,
    place integer NOT NULL,
    kind text NOT NULL,
    provider text NOT NULL,
    dialect text NOT NULL,
    operation text NOT NULL,
    host text NOT NULL,
    model text,
    model_returned text,
    actor text,
    status integer,
    tools text[],
    calls integer NOT NULL,
    exchanges integer NOT NULL,
    errors integer NOT NULL,
    input_tokens bigint,
    output_tokens bigint,
    cached_tokens bigint,
    reasoning_tokens bigint,
    cost_usd numeric,
    unpriced integer NOT NULL,
    first_bytes smallint[],
    durations smallint[],
    CONSTRAINT call_sums_pkey PRIMARY KEY (project, run, hour, place)
);
CREATE INDEX call_sums_project_hour_idx ON call_sums (project, hour);
COMMENT ON TABLE call_sums IS
    'Sums of the calls of a run that have the same traits and began in the same hour. Made from `calls`, a moment later.'
"""

TEXTS = """
CREATE TABLE texts (
    project text NOT NULL,
    run text NOT NULL,
    day date NOT NULL,
    hash bytea NOT NULL,
    call uuid NOT NULL,
    started_at bigint NOT NULL,
    role text NOT NULL,
    text bytea NOT NULL,
    words tsvector NOT NULL,
    CONSTRAINT texts_pkey PRIMARY KEY (project, run, day, hash)
) PARTITION BY RANGE (day);
CREATE INDEX texts_words_idx ON texts USING gin (words);
COMMENT ON TABLE texts IS 'What was said in a run, each text once, for searches. Made from `exchanges`, a moment later.'
"""

AUDIT_LOG = """
CREATE TABLE audit_log (
    project text NOT NULL,
    id uuid NOT NULL,
    token text,
    action text NOT NULL,
    subject text,
    path text NOT NULL,
    status integer NOT NULL,
    CONSTRAINT audit_log_pkey PRIMARY KEY (project, id)
);
COMMENT ON TABLE audit_log IS 'Who read bodies, exported, changed or deleted what, by the REST API.'
"""


def upgrade() -> None:
    for statements in (CALLS, RUNS, FEED, SUMS, TEXTS, AUDIT_LOG):
        for statement in statements.split(";\n"):
            op.execute(statement)
