"""Record exchanges: from an engine to the spool.

recorder              the recorder of a worker: what its recordings share
exchange_recording    record one exchange
recorded_message      the state of one side's message, and whether its body is redacted on the thread
ordered_queue         keep events in order while a body is redacted on a thread
spool_outbox          write records to the spool, and report gaps
run_identity          find the run, step and actor that a request names
request_start         remember what redaction gave for a head that repeats
"""
