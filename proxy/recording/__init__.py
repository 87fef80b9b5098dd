"""Record exchanges: from an engine to the spool.

recorder              the recorder of a worker: begin recordings, record gaps and effects
exchange_recording    record one exchange
message_recording     record one side's message: redact its body, here or on the thread
websocket_recording   record the messages of a WebSocket
redaction_speed       whether a body is redacted on the thread
ordered_queue         call functions in order, some of them when work on a thread is done
resources             what the recordings of a worker share
spool_outbox          write records to the spool in order, and report gaps
run_identity          find the run, step and actor that a request names
request_start         remember what redaction gave for a head that repeats
"""
