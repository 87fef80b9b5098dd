"""Rename columns to the names that the code uses."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.execute("ALTER TABLE calls RENAME COLUMN gives TO created_ids")
    op.execute("ALTER TABLE calls RENAME COLUMN takes TO returned_ids")
    op.execute("ALTER TABLE processes RENAME COLUMN divided TO is_divided")
    op.execute("ALTER TABLE processes RENAME COLUMN unclear TO is_unclear")
