"""From an engine to the spool.

recorder              what all exchanges of a worker share
exchange_recording    record one exchange
ordered_queue         keep events in order behind a body that is being redacted
spool_outbox          write records to the spool, and report gaps
run_identity          the run, step and actor that a request names
"""
