"""Add columns and indexes to find an exchange by its trace, and a call by ids and by the words of its answer."""

from alembic import op

revision = "0003"
down_revision = "0002"

EXCHANGES = (
    "ALTER TABLE exchanges ADD COLUMN trace text",
    "CREATE INDEX exchanges_project_trace_idx ON exchanges (project, trace) WHERE trace IS NOT NULL",
)

CALLS = """
ALTER TABLE calls
    ADD COLUMN gives text[],
    ADD COLUMN takes text[],
    ADD COLUMN said text
"""


def upgrade() -> None:
    for statement in (*EXCHANGES, CALLS):
        op.execute(statement)
