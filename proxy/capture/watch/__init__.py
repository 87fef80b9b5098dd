"""Notice the connections of a command that is not captive.

watcher          run the command, and collect the connections that were noticed
notifier         start the command with a seccomp filter
notifications    answer the kernel's notifications
polling          poll /proc instead
"""
