"""Drain the spools of the workers, derive calls, store them in Postgres, and serve the REST API.

server             the process of the store server
server_parts       make the parts of the store server, and stop them
followers          the parts that follow the record
server_config      the configuration of the store server
log_format         write what a process logs, as text or JSON
datadir            the paths of a data directory
lock               file locks
private_file       files that hold secrets, and sockets, for this user alone
run_tokens         claims of runs, and the tokens that may write into them
access             tokens with scopes and projects, and the audit log
run_modes          runs with a mode of their own
active_profiles    load the profiles in force
questions          questions to people, and their answers
pricing            compute what calls cost
canaries           what is known of canaries between their shots
worker_counters    the counters of the workers, for `/metrics`
report_sequence    count the changes of replay reports that a worker has written
spool              the queue on disk between a worker and the store server
ingest             read the spools and write to the tables
attribution        assign exchanges without an explicit run to one
call_graph         connect calls that belong together
database           connect to Postgres, define the tables, encode rows
objects            keep large bodies in object storage
embedded           run an embedded PostgreSQL
sums               sums over calls, stored for each run and hour
search             find words in what was said
feed               what was stored, in order, for everything that follows the record
erasure            erase runs and calls for good
retention          remove old runs by rules and a size budget
backup             write everything into one file, and restore it
proof              prove that the record was not altered
anchors            have others vouch for what was proven
otlp               export runs to OpenTelemetry
query              read runs and calls
diff               compare two runs
drift              find changes of the model behind a name
effects            what programs got from elsewhere than the network
timeline           when a run did what, and what was said in it
bundle             a run as a file
recorded_file      show a run that is a file
snippets           copy a call as a command, code or a file
foreign            read and write recordings of other programs
generations        generations of a run, and sessions in mode `auto`
large              handle exchanges that are too large for the server's memory
page               the web page
api                the REST API
"""
