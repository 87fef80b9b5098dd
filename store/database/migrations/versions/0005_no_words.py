"""Drop the words of answers: they are searched in the evidence, and the second copy was a quarter of all stored bytes."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.execute("ALTER TABLE calls DROP COLUMN said")
