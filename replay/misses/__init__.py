"""Requests that the recording does not answer.

miss       how the client is told
explain    find the reason and what would help
nearest    find the recorded call that is most similar
why        show the misses of a replay to a person
"""
