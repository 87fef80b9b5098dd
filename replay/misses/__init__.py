"""Requests that the recording does not answer.

miss        the response that reports a miss to the client
explain     find the reason for a miss, and possible fixes
candidates  the most similar recorded calls, and the rules that would ignore how they differ
nearest     find the most similar recorded call
why         format the misses of a replay as text
redacted_again  what recorded requests are by the present redaction rules
"""
