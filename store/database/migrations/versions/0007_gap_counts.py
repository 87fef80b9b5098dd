"""Add the count of gaps that are reported as one."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.execute("ALTER TABLE gaps ADD COLUMN count integer NOT NULL DEFAULT 1")
