"""Run the batch-invariant model server, and test any server.

server    set up and start the server
probe     send the same requests again and again
plans     what a probe sends
tally     count distinct answers
plot      draw them
replay    repeat recorded requests, and compare the answers
"""
