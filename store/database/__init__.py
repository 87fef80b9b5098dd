"""Connect to Postgres, define and migrate the tables, and encode rows.

connection        connect, migrate and translate errors
statement_connection  execute a few statements on a connection of their own
asyncio_engine    SQLAlchemy's engine without its ORM
conflicts         try a transaction again that conflicts with another
day_locks         keep who writes to a day apart from who replaces its partitions
run_versions      tell workers of this machine which runs have changed
plans             choose how Postgres plans statements, and have its connections know the partitions
wait              wait until the database is available; refuse a pooler that changes sessions
tables            the tables for SQLAlchemy Core
partition_tables  create the table of a partition
rows              write exchanges as rows and read them back
traits            number the values that calls are filtered by
blobs             compress and deduplicate bodies
object_forms      bytes that are in object storage
dictionary        the compression dictionary
schema_version    the version of the tables
upgrade           run the migrations
migrations        the migrations, one file for each change of the tables
"""
