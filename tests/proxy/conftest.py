"""What the proxy's tests share."""

from tests.support.postgres import database, database_url, postgres_server

__all__ = ["database", "database_url", "postgres_server"]
