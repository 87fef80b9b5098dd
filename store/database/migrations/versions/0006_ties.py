"""Add an index to find exchanges that share an id, among those without an explicit run."""

from alembic import op

revision = "0006"
down_revision = "0005"

INDEX = """
CREATE INDEX exchanges_ties_idx ON exchanges USING gin (ties) WITH (fastupdate = off) WHERE ties IS NOT NULL
"""


def upgrade() -> None:
    op.execute("ALTER TABLE exchanges ADD COLUMN ties bigint[]")
    op.execute(INDEX)
