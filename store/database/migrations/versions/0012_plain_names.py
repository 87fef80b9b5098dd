"""Rename columns to the names that the code uses."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.execute("ALTER TABLE calls RENAME COLUMN gives TO created_ids")
    op.execute("ALTER TABLE calls RENAME COLUMN takes TO returned_ids")
    for old in ("divided", "unclear"):
        op.execute(f"ALTER TABLE processes RENAME COLUMN {old} TO is_{old}")
        # From version 18 on, PostgreSQL names these constraints after their columns, and keeps the name.
        op.execute(f"ALTER TABLE processes ALTER COLUMN is_{old} DROP NOT NULL, ALTER COLUMN is_{old} SET NOT NULL")
