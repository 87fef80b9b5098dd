"""Give other answers than the recorded ones.

prepare          apply all overrides before a replay starts
apply            change the answer of a recorded exchange
faults           provider errors, timeouts, broken connections
dialect_paths    where each dialect has its text and tool calls
"""
