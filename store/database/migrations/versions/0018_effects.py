"""Add effects: what a program got from elsewhere than the network."""

from alembic import op

revision = "0018"
down_revision = "0017"

EFFECTS = """
CREATE TABLE effects (
    project text NOT NULL,
    id uuid NOT NULL,
    run text NOT NULL,
    observed_at bigint NOT NULL,
    process text NOT NULL,
    number integer NOT NULL,
    count integer NOT NULL,
    items bytea NOT NULL,
    salt bytea,
    CONSTRAINT effects_pkey PRIMARY KEY (project, id)
);
CREATE INDEX effects_project_run_process_number_idx ON effects (project, run, process, number);
COMMENT ON TABLE effects IS 'What the processes of a run got from elsewhere than the network, in batches.'
"""


def upgrade() -> None:
    for statement in EFFECTS.split(";"):
        op.execute(statement)
