"""Add which processes are known, and whether calls in a process's own run may belong to several conversations."""

from alembic import op

revision = "0011"
down_revision = "0010"

PROCESSES = """
CREATE TABLE processes (
    project text NOT NULL,
    run text NOT NULL,
    divided boolean NOT NULL,
    unclear boolean NOT NULL,
    CONSTRAINT processes_pkey PRIMARY KEY (project, run)
)
"""

COMMENT = """
COMMENT ON TABLE processes IS 'Processes whose calls name no run, and whether they worked on several things at once.'
"""


def upgrade() -> None:
    op.execute(PROCESSES)
    op.execute("INSERT INTO processes SELECT project, run, divided, true FROM shared_processes")
    op.execute("DROP TABLE shared_processes")
    op.execute(COMMENT)
