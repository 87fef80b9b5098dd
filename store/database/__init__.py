"""The connection to Postgres, the tables, and the form of rows.

connection        connect, migrate, translate errors
wait              wait for a database that is not available
tables            the tables
rows              exchanges as rows
blobs             compressed bodies
dictionary        the compression dictionary
schema_version    the version of the tables
upgrade           run the migrations
migrations        one file for each change of the tables
"""
