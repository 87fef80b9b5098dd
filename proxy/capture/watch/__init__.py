"""Notice the connections of a command that is not captive.

watcher          start the command, collect what was noticed
notifier         start it with a seccomp filter
notifications    read the notifications of the kernel
polling          read /proc instead
"""
