"""Effects: what a program got from elsewhere than the network, such as the time, random numbers, variables and files.

A program that runs with the effects hook (`clients/playhead-effects`) reports them in order, in batches. An effect has a kind, arguments,
results, the task that it happened in, and the file and line that asked. `docs/trace-format.md` describes its members.

items             read, check and write the effects of a batch
redact_items      replace secrets in them
questions         the questions that programs asked people, and the answers
"""
