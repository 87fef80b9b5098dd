"""Code shared by both wire engines.

engine                the Engine and Answerer interfaces
engine_state          the state shared by all connections of a worker
config                the configuration of an engine
access                decide whether a client may use the worker
run_access            refuse writes into a run that another command has claimed
destinations          decide which upstreams may be reached, and connect to them
recent_connections    recognise the worker's own connections
listener              accept connections, within the limit on open files
client_hello          parse the first message of a TLS handshake
alpn                  choose the version of HTTP for a client
heads                 check raw request heads and parsed header fields
http1_heads           check HTTP/1 response heads
trailers              decide which trailer fields are forwarded
problem               the worker's own refusals as RFC 9457 problems
recording_guard       keep errors of the recorder away from the wire
memory_budget         bound the memory that all connections use together
"""
