"""Run an embedded PostgreSQL for users who have none.

postgres      create, start and stop the server
postmaster    the process that supervises the server
db_health     check whether a database answers
"""
