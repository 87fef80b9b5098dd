"""What all tables have in common."""

from sqlalchemy import MetaData, PrimaryKeyConstraint

metadata = MetaData(naming_convention={"pk": "%(table_name)s_pkey", "ix": "%(table_name)s_%(column_0_N_name)s_idx"})


def primary_key(*columns: str) -> PrimaryKeyConstraint:
    """Return a primary key that begins with the project, as each does."""
    return PrimaryKeyConstraint("project", *columns)
