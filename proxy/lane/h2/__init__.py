"""HTTP/2 on both sides of the lane.

wire         one end of an HTTP/2 connection
client       a client's connection and its streams
heads        check HTTP/2 requests, and convert heads between HTTP/2 and HTTP/1.1
routes       connect to upstreams that may support HTTP/2, and share their connections
upstreams    connections to upstreams, and one request on them
"""
