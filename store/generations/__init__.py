"""Generations of a run, and sessions in mode `auto`.

names                which generation is replayed, and what the next one is called
build                build the next generation of a run
judging              decide whether an auto session becomes a generation
auto_sessions        auto sessions of runs
auto_session_file    the file in which a worker describes an auto session
fork_copies          ids for exchanges that a fork copies
fork_point           the steps at which a run can be left
"""
