"""How an exchange that names no run finds one, and how sure that is.

run_assignment      assign exchanges to runs, in the documented order
grouping            group exchanges that share a trace or an id
correlation_ids     ids that connect an exchange to others
run_chains          runs that continue one another
tool_attribution    attribute tool calls to the model call that requested them
processes           attribute the calls of one process
conversations       which calls of a process are one conversation
turns               who said what in a conversation
window              what is remembered of the calls of a process
identifiers         the identifiers in a call
certainty           whether an attribution was given, derived or guessed
"""
