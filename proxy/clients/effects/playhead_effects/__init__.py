"""Observe, or answer from a recording, what a Python program gets from elsewhere than the network. Standard library only.

start             connect to the worker and install the hooks
channel           the connection to the worker
recording         observe effects
replaying         answer them from a recording
overriding        results that a user gives in place of recorded ones
forking           answer from a recording, and record what the program got
values            results as JSON and back
callers           tell the program's own code from packages and the standard library
tasks             names of tasks and threads by the order in which they were started
order             what was done first where the program waits for some of several
order_of_tasks    tasks of asyncio
order_of_threads  what runs in pools of threads
cancellations     tasks that were cancelled
clocks            the time
randomness        random numbers, uuids, seeds
environment       variables, what a person types
files             files
listings          the names in directories
processes         programs that the program runs
late              patch modules when they are imported
in_process        hook a process for one test after the other
"""
