"""The OpenAPI document: what each route answers.

document     put the document together
answers      the answers of each route
problems     the problems, and which routes answer with them
example      put an example together from those of its members
values       the values that the schemas share
runs         runs and gaps
calls        calls, explanations and sums
costs        costs of a run
timelines    timelines and conversations of runs
exchanges    exchanges and chunks
proof        verifications and checkpoints
compare      comparisons of runs, changes of models, canaries
replays      reports of replays and forks
server       the state of the store server
storage      what retention and erasure remove

The schemas are imported when somebody asks for the document, not when the server starts. Routes write their answers by hand, and
do not use the schemas; a test checks what they answer.
"""
