"""Record and replay an agent on one machine, without an account or a network.

demo       run the demo
agent      the agent that is recorded
model      the model's API
tickets    the tools' API
servers    the process that serves both
service    the commands that the demo runs
offline    run a command without a network
screen     what the demo prints
"""
