"""Namespaces in which a command runs captive.

isolation       whether a command can run captive, and why not
launch          start a command in namespaces
inside          the process that becomes the command
channel         messages between the launcher and that process
addresses       make every address local
nftables        redirect all TCP to one listener
netlink         netlink messages
mounts          mounts
usernamespace   user and group ids
system_files    replacements of the host's files for name resolution and ssh
trust_files     copies of the files that hold certificate authorities
browser_policies  copies of browsers' policies that trust Playhead's CA
mirror          make listening ports reachable on both sides
listening       list listening sockets
refusals        count refused datagrams
"""
