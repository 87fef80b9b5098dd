"""Add how certain it is that an exchange belongs to its run, and which processes had concurrent conversations."""

from alembic import op

revision = "0008"
down_revision = "0007"

SHARED = """
CREATE TABLE shared_processes (
    project text NOT NULL,
    run text NOT NULL,
    divided boolean NOT NULL,
    CONSTRAINT shared_processes_pkey PRIMARY KEY (project, run)
)
"""

COMMENT = """
COMMENT ON TABLE shared_processes IS
    'Processes that worked on several things at once: what is left in their own run may belong to any of them.'
"""


def upgrade() -> None:
    op.execute("ALTER TABLE exchanges ADD COLUMN attribution smallint")
    op.execute(SHARED)
    op.execute(COMMENT)
