"""Captured connections.

arrival                 find out the protocol of a new connection, and hand it over
first_bytes             recognise TLS and HTTP
timing                  how long to wait for a silent client
original_destination    the destination of a redirected connection
destination             what an engine knows of a captured connection
failed_handshakes       report clients that do not trust the CA, also in tunnels
connection              a captured connection that is handed to an engine
relay                   pass bytes undecoded
passed_notes            note in the run which connections passed
reset                   close a connection with a reset
"""
