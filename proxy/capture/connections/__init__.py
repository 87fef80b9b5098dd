"""Captured connections.

arrival                 decide what a new connection speaks
first_bytes             recognise TLS and HTTP
timing                  how long to wait for a silent client
original_destination    where a redirected connection was going
destination             what the engines know of a captured connection
connection              what an engine is given
relay                   pass bytes as they are
passed_notes            note in the run what passed
reset                   close with a reset
"""
