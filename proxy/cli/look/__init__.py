"""The commands that look at recordings.

show       ls, show
"""
