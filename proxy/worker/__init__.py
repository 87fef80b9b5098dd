"""The proxy worker's process.

process           the process: `python -m proxy.worker.process`
process_limits    raise the limit of open files, forbid core files
huge_pages        move the worker's memory to huge pages
template          the process that forks workers for commands: `python -m proxy.worker.template`
counters          count connections and requests, for `/metrics`
recordings        load recordings for replays from files
stored_recordings  load them from the store server
run_versions      ask which versions runs have
preloaded_recordings  load small runs before anybody asks for them
replay_setup      set up the replays that a worker answers from
replay_reports    write the reports of replays
auto_sessions     the sessions of mode `auto`
auto_recorder     record what goes live in them as their candidates
"""
