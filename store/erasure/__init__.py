"""Erase runs and calls for good: from the tables, from files of the data directory, and from what Postgres leaves on disk.

docs/retention.md says what is erased, and what backups keep.

eraser         erase runs or calls, and report where something was
erase_rows     delete the rows of runs and calls, and encode anew what shares bytes with them
disk_traces    rewrite what Postgres has on disk: tables, statistics, the write-ahead log
files          erase from spools, replays and damaged records
mentions       find out whether a report or a file of a replay is about a run
matching       find the calls with a value at an RFC 9535 path
"""
