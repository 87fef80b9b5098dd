"""Add what answers say of their calls beside the status. Calls of which bytes were not recorded did not fail for that reason.

What an answer says is stored for what is recorded from now on. Sums of projects that have such calls are made anew.
"""

from alembic import op

revision = "0028"
down_revision = "0027"

STATES = """
ALTER TABLE calls ADD COLUMN answer_state text;
UPDATE calls SET answer_state = 'unkept' FROM exchanges
WHERE exchanges.truncated AND calls.project = exchanges.project AND calls.id = exchanges.id;
WITH changed AS (
    UPDATE calls SET failed = NULL, traits = array_remove(traits, ('x' || substr(md5('error=true'), 1, 8))::bit(32)::integer)
    WHERE answer_state = 'unkept' AND kind = 'model' AND streamed AND NOT complete AND outcome = 'completed'
        AND status BETWEEN 200 AND 299 AND coalesce(finish_reason, '') NOT IN ('failed', 'error', 'ERROR')
    RETURNING project
), changed_days AS (
    UPDATE summed_days SET is_valid = false, changes = changes + 1 WHERE project IN (SELECT project FROM changed)
)
DELETE FROM feed_positions WHERE consumer = 'sums/5' AND project IN (SELECT project FROM changed)
"""


def upgrade() -> None:
    for statement in STATES.split(";\n"):
        op.execute(statement)
