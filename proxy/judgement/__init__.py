"""Ask a model for verdicts, through Playhead, so that a judgement is a run of its own.

ask      the program that sends the requests to the judge; it runs as the command of a record or replay
report   show judgements
"""
