"""A PostgreSQL of our own, for users who have none.

postgres      create, start and stop it
postmaster    the process that keeps the server alive
db_health     whether it answers
"""
