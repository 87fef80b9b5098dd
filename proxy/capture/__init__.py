"""Capture of what a command opens, whether it cooperates or not, and of who opened it: captive commands, whose connections are
all accepted by the proxy worker; redirected ones; a watcher for commands that are not captive; the process behind a connection.
"""
