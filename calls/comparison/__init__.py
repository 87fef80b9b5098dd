"""Compare two recordings of the same work.

alignment             match the calls of two runs
calibrate             find which fields of requests differ between two runs
proposal              write the findings as rules for `playhead.toml`
ignore_rule           propose the rule that leaves one field out of keys
field_heuristics      guess the class of a field from its values
answer_fingerprint    digest the content of an answer
answer_volatile       find the values that are new in each answer
envelope              what moves between runs, and what of it was captured
drift                 how a request differs from the recorded one outside its key
"""
