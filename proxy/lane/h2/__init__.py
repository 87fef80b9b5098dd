"""HTTP/2 on both sides of the lane.

wire         one end of a connection of HTTP/2
client       a client's connection and its streams
heads        convert heads between HTTP/2 and HTTP/1.1
routes       find out which version an upstream speaks
upstreams    connections to upstreams
"""
