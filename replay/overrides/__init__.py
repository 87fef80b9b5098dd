"""Replace recorded answers.

prepare          apply all overrides before a replay starts
apply            change the answer of a recorded exchange
faults           inject provider errors, timeouts and broken connections
dialect_paths    where each dialect has its text and tool calls
"""
