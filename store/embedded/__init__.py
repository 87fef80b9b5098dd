"""Run an embedded PostgreSQL for users who have none.

early_start   start the server beside the imports of the store server
postgres      create, start and stop the server
postmaster    the process that supervises the server
db_health     check whether a database answers
"""
