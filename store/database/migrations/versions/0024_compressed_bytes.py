"""Do not try to compress what is compressed, and count no words of texts.

Bodies and texts are stored in zstd, so Postgres compresses none of them, and trying to takes as long as storing them; vectors of words shrink
little. Counting the words of 30,000 texts takes seconds whenever a day has grown by a tenth, and no search needs it: it takes a sample.
"""

from alembic import op

revision = "0024"
down_revision = "0023"

COMPRESSED = {
    "exchanges": ("head", "request_body", "response_body"),
    "parts": ("body",),
    "calls": ("summary",),
    "feed": ("entries",),
    "texts": ("text", "words"),
}


def upgrade() -> None:
    for table, columns in COMPRESSED.items():
        for column in columns:
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
    op.execute("ALTER TABLE texts ALTER COLUMN words SET STATISTICS 0")
