"""Test which clients of this machine can be recorded.

doctor           run the probes and judge them
client_probes    the clients that are probed
probe_servers    servers that observe what a client does
"""
