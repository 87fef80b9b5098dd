"""Record and replay an agent on one machine, without an account or a network.

demo       run the demo
agent      the agent that is recorded
model      a fake model API
tickets    a fake help desk API for the agent's tools
servers    the process that serves both APIs
service    run the demo's commands
offline    run a command without a network
screen     print the demo
"""
