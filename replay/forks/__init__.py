"""Leave a recording at a step and continue live.

fork          a fork of a run
hooks         the points at which a fork or overrides change a replay
generation    the next generation of a run, as a bundle
"""
