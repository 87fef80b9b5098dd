"""Mark the calls of models whose answer broke off, or said that it failed, under a status of success; make the sums of calls anew.

Sums also count a call to an MCP server for the tool that it names. They are made by the consumer of the feed that makes the sums
(`store.sums.run_sums`), in pieces, because it has a new name.
"""

from alembic import op

revision = "0027"
down_revision = "0026"

MARKS = """
UPDATE calls SET failed = true, traits = (
    SELECT array_agg(trait ORDER BY trait)
    FROM unnest(traits || ('x' || substr(md5('error=true'), 1, 8))::bit(32)::integer) AS trait
)
WHERE kind = 'model' AND status BETWEEN 200 AND 299
    AND (finish_reason IN ('failed', 'error', 'ERROR') OR streamed AND NOT complete AND outcome = 'completed')
    AND NOT traits @> ARRAY[('x' || substr(md5('error=true'), 1, 8))::bit(32)::integer];
UPDATE summed_days SET is_valid = false, changes = changes + 1;
DELETE FROM feed_positions WHERE consumer = 'sums/4'
"""


def upgrade() -> None:
    for statement in MARKS.split(";\n"):
        op.execute(statement)
