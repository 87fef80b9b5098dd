"""Compare two runs.

diff               where two runs differ, and why
steps              a run as the steps that are compared
cause              why two calls differ
inquiry            which difference follows from which
settled            ignore volatile values
mixed_recording    mix a recording from two runs
words              compare two texts by words
"""
