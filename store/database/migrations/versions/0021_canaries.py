"""Add what is known of canaries: models that are asked the same again and again."""

from alembic import op

revision = "0021"
down_revision = "0020"

CANARIES = """
CREATE TABLE canaries (
    project text NOT NULL,
    name text NOT NULL,
    updated_at bigint NOT NULL,
    state bytea NOT NULL,
    CONSTRAINT canaries_pkey PRIMARY KEY (project, name)
);
COMMENT ON TABLE canaries IS 'Models that are asked the same again and again: counts and digests of their answers.'
"""


def upgrade() -> None:
    for statement in CANARIES.split(";"):
        op.execute(statement)
