"""Add the fingerprint of the model and a digest of the answer, which show silent changes of a provider."""

from alembic import op

revision = "0004"
down_revision = "0003"

CALLS = "ALTER TABLE calls ADD COLUMN fingerprint text, ADD COLUMN answer bytea"

MODELS = """
CREATE INDEX calls_models_idx
    ON calls (project, provider, model_requested, model_returned, fingerprint, started_at, id)
    WHERE kind = 'model' AND status < 300
"""


def upgrade() -> None:
    for statement in (CALLS, MODELS):
        op.execute(statement)
