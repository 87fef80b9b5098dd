"""Drain the spools of the workers, derive calls, store them in Postgres, and serve the REST API.

__main__           the store server's process: `python -m store`
server_config      the configuration of that process
datadir            the paths of a data directory
lock               file locks
private_file       read and write files that hold secrets
run_tokens         who may write into a run
run_modes          runs with a mode of their own
active_profiles    the profiles in force
prices             what a call cost
worker_counters    the counters of the workers, for `/metrics`
report_sequence    how often the reports of a worker have changed
spool              the queue on disk between a worker and the store server
ingest             from the spool to the tables
attribution        find the run of an exchange that names none
call_graph         which calls belong together
database           the connection, the tables, the form of rows
embedded           a PostgreSQL of our own
query              read runs and calls
diff               compare two runs
bundle             a run as a file
foreign            files of other programs
generations        generations of a run, and sessions in mode `auto`
large              exchanges that are too large for the server's memory
api                REST
"""
