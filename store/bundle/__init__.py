"""A run as a file.

bundle              read and write bundles (docs/trace-format.md)
trace               an exchange as JSON
exchange_summary    an exchange without its bodies
rows_bundle         a run as its rows, for a replay on this machine
leaks               search a bundle for secrets
"""
