"""Namespaces in which a command runs captive.

isolation       whether a command can run captive, and why not
launch          start a command in namespaces
inside          the process that becomes the command
channel         messages between launcher and that process
addresses       make every address local
nftables        redirect all TCP to one listener
netlink         netlink messages
mounts          mounts
usernamespace   user and group ids
system_files    the files that a captive command sees instead of the host's
trust_files     copies of the files that hold certificate authorities
mirror          make ports reachable on both sides
listening       which sockets listen
refusals        what was refused
"""
