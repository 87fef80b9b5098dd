"""Add which models answered on each day, and their answers by key, by which drift is found without reading all calls.

They are filled by the store server (`store.drift.model_days`), day by day; until then drift is found in the calls.
"""

from alembic import op

revision = "0025"
down_revision = "0024"

DAYS = """
CREATE TABLE model_days (
    project text NOT NULL,
    day bigint NOT NULL,
    changes bigint NOT NULL,
    variants bytea,
    linked_at bigint,
    repeats bytea,
    CONSTRAINT model_days_pkey PRIMARY KEY (project, day)
);
COMMENT ON TABLE model_days IS
    'Which models answered on a day that is over, and how often they repeated and changed an answer. Made from `calls`.';
CREATE TABLE model_answers (
    project text NOT NULL,
    key bytea NOT NULL,
    started_at bigint NOT NULL,
    id uuid NOT NULL,
    variant integer NOT NULL,
    answer bytea NOT NULL,
    CONSTRAINT model_answers_pkey PRIMARY KEY (project, key, started_at, id)
);
CREATE INDEX model_answers_project_started_at_idx ON model_answers (project, started_at);
COMMENT ON TABLE model_answers IS
    'The answers of models on the days of `model_days`, by which the previous answer to a request is found.'
"""


def upgrade() -> None:
    for statement in DAYS.split(";\n"):
        op.execute(statement)
