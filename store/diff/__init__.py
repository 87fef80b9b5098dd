"""Compare two runs.

diff               where two runs differ, and why
steps              a run as the steps that are compared
cause              why two calls differ
inquiry            which difference follows from which
volatile_values    make the volatile values of two runs equal
mixed_recording    mix a recording from two runs
word_diff          compare two texts by words
"""
