"""Notice the connections of a command that is not captive, and those of a captive one to unix sockets.

watcher          run the command, and collect the connections that were noticed
notifier         start the command with a seccomp filter
notifications    answer the kernel's notifications
local_sockets    answer those of a captive command
local_services   what unix sockets and vsock lead to
survivors        answer those of processes that outlive the command
seccomp          the filter, and the format of notifications
process_memory   read the addresses in a process's memory
polling          poll /proc instead
"""
