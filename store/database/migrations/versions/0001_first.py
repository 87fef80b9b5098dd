"""The first tables."""

from alembic import op

revision = "0001"
down_revision = None

RUNS = """
CREATE TABLE runs (
    project text NOT NULL,
    id text NOT NULL,
    incarnation uuid NOT NULL,
    name text,
    labels jsonb DEFAULT '{}'::jsonb NOT NULL,
    started_at bigint NOT NULL,
    newest_at bigint NOT NULL,
    active_at bigint NOT NULL,
    ended_at bigint,
    pinned boolean DEFAULT false NOT NULL,
    parent text,
    forked_at integer,
    profile text,
    CONSTRAINT runs_pkey PRIMARY KEY (project, id)
);
CREATE INDEX runs_project_started_at_id_idx ON runs (project, started_at, id);
CREATE INDEX runs_labels_idx ON runs USING gin (labels jsonb_path_ops);
COMMENT ON TABLE runs IS 'One agent''s work from start to end.';
"""

EXCHANGES = """
CREATE TABLE exchanges (
    project text NOT NULL,
    id uuid NOT NULL,
    run text NOT NULL,
    started_at bigint NOT NULL,
    first_byte_at bigint,
    ended_at bigint,
    method text NOT NULL,
    url text NOT NULL,
    status integer,
    outcome text NOT NULL,
    truncated boolean NOT NULL,
    redactions integer NOT NULL,
    request_digest bytea NOT NULL,
    response_digest bytea,
    head bytea NOT NULL,
    request_body bytea NOT NULL,
    response_body bytea,
    CONSTRAINT exchanges_pkey PRIMARY KEY (project, id)
) PARTITION BY RANGE (id);
CREATE INDEX exchanges_project_run_started_at_id_idx ON exchanges (project, run, started_at, id);
COMMENT ON TABLE exchanges IS
    'One HTTP request and its response as they crossed the wire, after redaction: the evidence.';
"""

PARTS = """
CREATE TABLE parts (
    project text NOT NULL,
    run text NOT NULL,
    day date NOT NULL,
    hash bytea NOT NULL,
    body bytea NOT NULL,
    CONSTRAINT parts_pkey PRIMARY KEY (project, run, day, hash)
) PARTITION BY RANGE (day);
COMMENT ON TABLE parts IS
    'Bytes of request bodies that later requests of the same run repeat; referred to by `exchanges.request_body`.';
"""

CALLS = """
CREATE TABLE calls (
    project text NOT NULL,
    id uuid NOT NULL,
    run text NOT NULL,
    started_at bigint NOT NULL,
    later uuid[],
    kind text NOT NULL,
    provider text NOT NULL,
    dialect text NOT NULL,
    operation text NOT NULL,
    host text NOT NULL,
    status integer,
    outcome text NOT NULL,
    model_requested text,
    model_returned text,
    tools text[],
    finish_reason text,
    input_tokens bigint,
    output_tokens bigint,
    cached_tokens bigint,
    reasoning_tokens bigint,
    streamed boolean NOT NULL,
    complete boolean NOT NULL,
    key bytea NOT NULL,
    profile text NOT NULL,
    CONSTRAINT calls_pkey PRIMARY KEY (project, id)
) PARTITION BY RANGE (id);
CREATE INDEX calls_project_run_started_at_id_idx ON calls (project, run, started_at, id);
CREATE INDEX calls_project_started_at_id_idx ON calls (project, started_at, id);
CREATE INDEX calls_project_host_started_at_idx ON calls (project, host, started_at);
CREATE INDEX calls_project_model_requested_started_at_idx ON calls (project, model_requested, started_at)
    WHERE model_requested IS NOT NULL;
CREATE INDEX calls_failed_idx ON calls (project, started_at) WHERE status >= 400;
COMMENT ON TABLE calls IS
    'What an exchange meant, as far as it is filtered or summed by. Derived; the rest is derived when it is read.';
"""

GAPS = """
CREATE TABLE gaps (
    project text NOT NULL,
    id uuid NOT NULL,
    run text NOT NULL,
    happened_at bigint NOT NULL,
    reason text NOT NULL,
    exchange text,
    evidence bytea,
    CONSTRAINT gaps_pkey PRIMARY KEY (project, id)
);
CREATE INDEX gaps_project_run_idx ON gaps (project, run);
COMMENT ON TABLE gaps IS 'Something passed, or may have passed, that is not among the exchanges.';
"""

REPLAYS = """
CREATE TABLE replays (
    project text NOT NULL,
    id text NOT NULL,
    report bytea NOT NULL,
    CONSTRAINT replays_pkey PRIMARY KEY (project, id)
);
COMMENT ON TABLE replays IS 'The newest report of each replay.';
"""


def upgrade() -> None:
    for table in (RUNS, EXCHANGES, PARTS, CALLS, GAPS, REPLAYS):
        for statement in table.split(";\n"):
            if statement.strip():
                op.execute(statement)
