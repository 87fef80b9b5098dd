"""Test which clients of this machine can be recorded.

doctor           run the tests and judge them
client_probes    the clients that are tried
probe_servers    the servers that see what a client did
"""
