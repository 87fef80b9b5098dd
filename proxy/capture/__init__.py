"""Capture the connections of a command, whether it cooperates or not, and find the process behind a connection.

command          run a command captive, or with proxy variables and a watcher
control          the socket on which launchers hand over the sockets of a command
control_path     the path of that socket
capture          the sockets and names of one command
intake           all captures of a worker
report           what passed or was refused
owner            the process that owns a connection
process          read processes from /proc
transparent      take connections that a firewall redirects
rules            the firewall rules
namespace        namespaces of a captive command
dns              answer the DNS queries of a captive command
connections      captured connections
watch            notice the connections of a command that is not captive
"""
