"""Add the cost of calls, and the ids by which several exchanges are joined to one call (a single list was ambiguous)."""

from alembic import op

revision = "0002"
down_revision = "0001"

CALLS = """
ALTER TABLE calls
    DROP COLUMN later,
    ADD COLUMN cost_usd numeric,
    ADD COLUMN prices text,
    ADD COLUMN polls text,
    ADD COLUMN pending text
"""


def upgrade() -> None:
    op.execute(CALLS)
