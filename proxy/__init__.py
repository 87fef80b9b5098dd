"""The proxy, the recorder and the command line.

main               the console script
settings           the settings: files, environment variables and flags
setting_values     read the values of settings
export_settings    the setting `[[export]]`
anchor_settings    the settings `[[witness]]` and `[timestamp]`
retention_settings  the settings of retention
object_settings    the table `[objects]`
price_settings     the file of prices that the setting `prices` names
errors             the exception that ends a command
clock              wall time without short jumps
run_names          resolve the name of a recording to a run or a file
worker_config      the configuration of a proxy worker
recording_file     replace a file that holds a recording
wire               what both wire engines share
lane               the fast wire engine
mitm               the wire engine built on mitmproxy
recording          record what an engine sees in the spool
effects            record and replay what the processes of a command get without the network
canary             ask models the same again
capture            run commands in a namespace where every address is local
trust              certificates, and the environment variables of clients
worker             the proxy worker's process
processes          find or start the processes that a command needs
commands           what the commands do
cli                the command line
doctor             test which clients can be recorded
fixtures           record and replay for test suites
terminal           text for terminals
inference          the batch-invariant model server
judgement          ask a model for verdicts
trials             run a command many times, each time answered from a recording
demo               the demo
clients            programs that run in the interpreters of recorded clients
"""
