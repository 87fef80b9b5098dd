"""Add what witnesses and timestamp authorities say about checkpoints."""

from alembic import op

revision = "0015"
down_revision = "0014"

ANCHORS = """
CREATE TABLE anchors (
    project text NOT NULL,
    server uuid NOT NULL,
    size bigint NOT NULL,
    kind text NOT NULL,
    by text NOT NULL,
    at bigint NOT NULL,
    content bytea NOT NULL,
    CONSTRAINT anchors_pkey PRIMARY KEY (project, server, size, kind, by)
);
CREATE INDEX anchors_project_server_kind_by_size_idx ON anchors (project, server, kind, by, size);
COMMENT ON TABLE anchors IS 'Cosignatures of checkpoints by witnesses (C2SP tlog-witness), and timestamps of RFC 3161.'
"""


def upgrade() -> None:
    for statement in ANCHORS.split(";"):
        op.execute(statement)
