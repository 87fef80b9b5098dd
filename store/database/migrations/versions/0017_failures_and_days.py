"""Add which calls failed in the end, the sums of whole days, and the order in which texts were said.

Failures and sums are filled by the consumer of the feed that makes the sums (`store.sums.run_sums`), in pieces, because it has a new name.
"""

from alembic import op

revision = "0017"
down_revision = "0016"

FAILURES = """
ALTER TABLE calls ADD COLUMN failed boolean;
CREATE INDEX calls_failed_idx ON calls (project, started_at, id) WHERE failed;
CREATE INDEX calls_failed_cost_idx ON calls (project, cost_usd, id) WHERE failed AND cost_usd IS NOT NULL
"""

TEXTS = "CREATE INDEX texts_project_day_started_at_idx ON texts (project, day, started_at)"

DAYS = """
CREATE TABLE day_sums (
    project text NOT NULL,
    day bigint NOT NULL,
    cube smallint NOT NULL,
    place integer NOT NULL,
    hour bigint,
    run text,
    kind text,
    provider text,
    dialect text,
    operation text,
    host text,
    model text,
    model_returned text,
    actor text,
    status integer,
    tools text[],
    calls bigint NOT NULL,
    exchanges bigint NOT NULL,
    errors bigint NOT NULL,
    input_tokens bigint,
    output_tokens bigint,
    cached_tokens bigint,
    reasoning_tokens bigint,
    cost_usd numeric,
    unpriced bigint NOT NULL,
    first_bytes smallint[],
    first_byte_counts integer[],
    durations smallint[],
    duration_counts integer[],
    CONSTRAINT day_sums_pkey PRIMARY KEY (project, day, cube, place)
);
COMMENT ON TABLE day_sums IS
    'Sums of the calls of all runs on a day that is over. Made from `call_sums`, some minutes later.';
CREATE TABLE summed_days (
    project text NOT NULL,
    day bigint NOT NULL,
    is_valid boolean NOT NULL,
    changes bigint NOT NULL,
    changed_at bigint NOT NULL,
    CONSTRAINT summed_days_pkey PRIMARY KEY (project, day)
);
COMMENT ON TABLE summed_days IS 'The days of `call_sums`, and which of them `day_sums` has.';
DELETE FROM feed_positions WHERE consumer = 'sums/1'
"""


def upgrade() -> None:
    for part in (FAILURES, TEXTS, DAYS):
        for statement in part.split(";"):
            op.execute(statement)
