"""Add what is known of objects in object storage."""

from alembic import op

revision = "0016"
down_revision = "0015"

OBJECTS = """
ALTER TABLE exchanges ADD COLUMN offloaded boolean;
CREATE TABLE objects (
    project text NOT NULL,
    address bytea NOT NULL,
    key_id bytea NOT NULL,
    size bigint NOT NULL,
    generation uuid NOT NULL,
    touched_at bigint NOT NULL,
    CONSTRAINT objects_pkey PRIMARY KEY (project, address)
);
COMMENT ON TABLE objects IS 'What object storage has, or is about to have. A row is there before its object, and is locked while the object is deleted.';
CREATE TABLE object_uses (
    project text NOT NULL,
    run text NOT NULL,
    day date NOT NULL,
    address bytea NOT NULL,
    CONSTRAINT object_uses_pkey PRIMARY KEY (project, run, day, address)
);
CREATE INDEX object_uses_project_address_idx ON object_uses (project, address);
COMMENT ON TABLE object_uses IS 'Which objects the exchanges and parts of a run and day name.'
"""


def upgrade() -> None:
    for statement in OBJECTS.split(";"):
        op.execute(statement)
