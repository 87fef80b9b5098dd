"""Remove old runs by rules and a size budget. docs/retention.md explains it.

rules             what the rules of `playhead.toml` say of a run; pure
facts             load what rules look at
plan              decide which runs go, and how much that frees
partition_sizes   how large each day is, and each run in it
expiry            remove the runs of a plan from everything but the partitions
bodies            erase the bodies of runs and keep what is known about them
remains           remove what is left of an expired run before a new run gets its name
partition_swap    remove what has expired from the partitions, and return their space
runner            do it regularly, and one server at a time
"""
