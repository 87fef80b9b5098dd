"""Add to the sums of each run what a list of runs shows and is filtered by, and the labels by which days are summed.

They are filled by the consumer of the feed that makes the sums (`store.sums.run_sums`), in pieces, because it has a new name. Until
then, lists of runs and their counts are made from the calls.
"""

from alembic import op

revision = "0023"
down_revision = "0022"

FACETS = """
ALTER TABLE run_totals
    ADD COLUMN exchanges integer,
    ADD COLUMN input_tokens bigint,
    ADD COLUMN output_tokens bigint,
    ADD COLUMN cached_tokens bigint,
    ADD COLUMN reasoning_tokens bigint,
    ADD COLUMN unpriced integer,
    ADD COLUMN models text[],
    ADD COLUMN attribution smallint,
    ADD COLUMN facets text[],
    ADD COLUMN is_cut boolean,
    ADD COLUMN traits integer[];
CREATE INDEX run_totals_traits_idx ON run_totals USING gin (traits);
CREATE INDEX run_totals_cut_idx ON run_totals (project, run) WHERE is_cut;
ALTER TABLE day_sums
    ADD COLUMN labels jsonb,
    ADD COLUMN cost_class smallint,
    ADD COLUMN duration_class smallint,
    ADD COLUMN is_failed boolean;
UPDATE summed_days SET is_valid = false, changes = changes + 1;
DELETE FROM feed_positions WHERE consumer = 'sums/3'
"""


def upgrade() -> None:
    for statement in FACETS.split(";"):
        op.execute(statement)
