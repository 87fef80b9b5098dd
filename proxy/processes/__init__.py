"""Find or start the processes that a command needs.

command_processes    the store server and workers of a command
store_connection     the store server that a command uses, while it starts
store_server         the process of the store server
store_helper         a helper process of the store server
child_process        start one process and wait until it is ready; reap orphans
forked_process       have a worker forked by a process that is ready
early_worker         start a worker before the settings are known
early_process        a worker that was started early
process_context      what a process passes on to those that it starts
log_files            open the logs of processes, and remove old ones
store_client         requests to the store server
http_client          HTTP with the standard library alone
http_reader          GET requests over connections that are used again
ports                choose ports
settings_match       compare the settings of a command with those of a running `up`
user_command         run the user's command
"""
