"""Assign exchanges without an explicit run to one, and record how certain that is.

A worker stores the evidence for the run of each exchange (`Exchange.run_evidence`). Without explicit evidence an exchange
arrives in the run of its connection's owner, and is moved here, by a batch at a time.

run_assignment      assign exchanges to runs, in the documented order
grouping            apply all of the following to a batch
shared_traces       find the traces that at least two calls share
correlation_ids     ids that connect an exchange to others
run_chains          join exchanges whose requests refer to ids of earlier answers
tool_attribution    attribute tool calls to the model call that requested them
processes           attribute the calls of a process that names no run
conversations       decide whether conversations of a process overlap
turns               read the questions and answers of a conversation
window              remember the recent calls of a process
identifiers         collect the identifiers in a call
certainty           whether an attribution was given, derived or guessed
"""
