"""Run the batch-invariant model server, and test any server for batch invariance.

server    set up and start the server
probe     send the same requests repeatedly under load
plans     the requests that a probe sends
tally     count distinct answers
plot      plot distinct answers against load
replay    repeat recorded requests, and compare the answers
"""
