"""A run as a file.

bundle              read and write bundles (docs/trace-format.md)
sealed_lines        the digest at the end of each line, and characters that nobody would see
shared_ends         what a request's body has in common with earlier ones
trace               convert exchanges to JSON and back
statement           what a proof commits to
exchange_summary    an exchange without its bodies
rows_bundle         read a run as database rows, for a replay on this machine
stored_effects      read the effects of runs from the database
leaks               search a recording for secrets
"""
