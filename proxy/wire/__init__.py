"""What both wire engines share.

engine                the interfaces of an engine and of an answerer
engine_state          what all connections of a worker share
config                the configuration of an engine
access                whether a client may use the worker
run_access            whether a client may write into a run
destinations          which upstreams may be reached, and connecting to them
recent_connections    recognise the worker's own connections
listener              accept connections, within the limit of open files
client_hello          read the first message of a TLS handshake
alpn                  which version of HTTP a client gets
heads                 check the heads of messages
http1_heads           check the heads of HTTP/1
trailers              which trailer fields are passed on
problem               refusals as RFC 9457 problems
recording_guard       keep errors of recording away from the wire
memory_budget         bound the memory that all connections take together
"""
