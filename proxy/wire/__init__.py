"""What both wire engines share.

listener          accept connections, and no more of them than there are files for
http1_heads       judge what a head of HTTP/1 says
memory_budget     what all connections of a worker may hold together
run_access        who may write into which run
trailers          which trailer fields are passed on
"""
