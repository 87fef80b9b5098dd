"""Add which exchanges are large, and the summaries of their calls for lists."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("ALTER TABLE exchanges ADD COLUMN large boolean")
    op.execute("ALTER TABLE calls ADD COLUMN summary bytea")
    op.execute("CREATE INDEX exchanges_large_idx ON exchanges (project, run) WHERE large")
