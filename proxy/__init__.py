"""The proxy, the recorder and the command line.

settings           the settings
errors             the exception that ends a command
clock              wall time without jumps
uuid7              ids in order of time
run_names          what the name of a recording means
worker_config      the configuration of a proxy worker
recording_file     write a file that holds a recording
wire               what both wire engines share
lane               the fast wire engine
mitm               the wire engine made of mitmproxy
recording          from an engine to the spool
capture            run commands in a namespace where every address is local
trust              certificates and the environment of clients
worker             the proxy worker's process
processes          find or start the processes that a command needs
commands           what the commands do
cli                the command line
doctor             test which clients can be recorded
fixtures           record and replay for test suites
terminal           text for terminals
inference          the batch-invariant model server
demo               the demo
clients            programs that run in other people's interpreters
"""
