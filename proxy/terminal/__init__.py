"""Text for terminals, and what to do when one is closed.

text            make hostile text safe to print
table           tables
waiting         say what a command waits for
render_run      show a run, and one call
render_effects  show effects, and their sums between calls
render_diff     show a diff
render_drift    show drift
render_check    show the results of checks
hangup          end in order when the terminal is closed
"""
