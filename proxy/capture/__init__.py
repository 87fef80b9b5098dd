"""Capture the connections of a command, whether it cooperates or not, and find the process behind a connection.

command          run a command captive, or with proxy variables and a watcher
pinned           what of its surroundings a command has as it was recorded
inherited        connections that a command inherits
faketime         a clock that is moved, through libfaketime
control          the socket on which launchers pass the sockets of a command to a worker
control_path     the path of that socket
capture          the sockets, names and connections of one command
intake           all captures of a worker
report           count connections that passed or were refused
owner            find the process that owns a connection
process          read processes from /proc
transparent      accept connections that a firewall redirects
rules            the firewall rules for that
namespace        run a command in namespaces of its own
dns              answer the DNS queries of a captive command
connections      captured connections
watch            notice the connections of a command that is not captive
"""
