"""Add which exchanges are earlier attempts or repeated polls, so that sums over calls need not find that out for each run.

They are marked by the consumer of the feed that makes the sums (`store.sums.run_sums`), in pieces, because it has a new name.
"""

from alembic import op

revision = "0020"
down_revision = "0019"

MARKS = """
ALTER TABLE calls ADD COLUMN superseded boolean, ADD COLUMN repeated boolean;
DELETE FROM feed_positions WHERE consumer = 'sums/2'
"""


def upgrade() -> None:
    for statement in MARKS.split(";"):
        op.execute(statement)
