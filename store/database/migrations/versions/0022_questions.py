"""Add an index of the questions that programs ask people, which are effects."""

from alembic import op

revision = "0022"
down_revision = "0021"

INDEX = """
CREATE INDEX effects_people_idx ON effects (project, observed_at, number) WHERE process = 'person'
"""


def upgrade() -> None:
    op.execute(INDEX)
