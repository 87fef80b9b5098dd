"""Index all words in `text_groups`: searches read one form of texts, and their words are divided by one set of rules.

The index is made anew from the stored calls, in the background, as wherever its position in the feed is missing.
"""

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.execute("DROP TABLE texts")
    op.execute("DELETE FROM feed_positions WHERE consumer = 'texts/1'")
