"""Text for terminals.

text            make hostile text safe to print
table           tables
waiting         say what a command waits for
render_run      show a run, and one call
render_effects  show effects, and their sums between calls
render_diff     show a diff
render_drift    show drift
render_check    show the results of checks
"""
