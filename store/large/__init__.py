"""Exchanges that are too large for the store server's own memory: they are stored and read by helper processes.

`weight` says which exchanges are large, `memory` limits a process, `worker` is the helper process, `helper` starts one
and gives it jobs, and `queue` stores large exchanges one after another while the drain goes on with the others.
"""
