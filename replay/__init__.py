"""Answer from a recording, or say exactly why not. Nothing here opens a connection.

replays           choose the recording that answers a request
recording         a recorded run, keyed and indexed
script            choose the recorded exchange that answers a request
session           one replay: a position in a recording, and what happened
answer            what a wire engine is told to send
playback          a recorded exchange as an answer
pacing            when each piece of a body is sent
report            the report of a replay
replay_options    overrides and forks, as clients of the API request them
misses            requests that the recording does not answer
overrides         give other answers than the recorded ones
reframing         give a recorded answer in another form
websocket         replay WebSockets
forks             leave the recording at a step
"""
