"""Effects of a command: what the hook in its Python processes observes reaches the worker, and a replay's recorded ones reach the hook.

channel     the socket of a worker on which the hooks of a run's processes connect
launch      the variables that load the hook into a command, and how the command ended
frames      the messages between a hook and a worker
"""
