"""Add how far the command of a run was isolated from the network."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute("ALTER TABLE runs ADD COLUMN isolation text")
