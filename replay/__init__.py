"""Answer from a recording, or say exactly why not. Nothing here opens a connection.

replays            choose the recording that answers a request
recording          a recorded run, keyed and indexed
script             choose the recorded exchange that answers a request
closest_match      choose the one that fits best, and adapt its answer
incoming_request   a request to a replay
session            one replay: its position in a recording, its counts and its report
answer             the answer that a wire engine sends
duplex             calls that are answered before their request ends
refusals           refuse a request in the form that its client reads
playback           turn a recorded exchange into an answer
pacing             when each piece of a body is sent
pinned             the variables that a replay has as they were recorded
effects            the recorded effects of a replay
report             the report of a replay
replay_options     the options of one replay
requested_options  apply the options, overrides and fork that a client of the API requests
misses             requests that the recording does not answer
overrides          replace recorded answers
reframing          serve a recorded answer in another form
websocket          replay WebSockets
forks              leave the recording at a step and continue live
"""
