"""Generations of a run, and sessions in mode `auto`.

names                which generation is replayed, and the name of the next one
build                find the flaws of a recording that is to become a generation
judging              decide whether an auto session becomes a generation
auto_sessions        end auto sessions
auto_session_file    the file in which a worker describes an auto session
fork_copies          ids for copied exchanges
fork_agent           ask the configured agent to run a fork
fork_point           the step at which a run can be resumed
"""
