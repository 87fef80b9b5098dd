"""What calls cost, and by what several exchanges are known to be one call (which one list of ids could not say)."""

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
