"""Leave a recording at a step, and go on live.

fork          a fork of a run
hooks         where a fork takes part in a replay
generation    the next generation of a run, as a bundle
"""
