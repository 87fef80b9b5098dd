"""The commands that look at recordings.

lists          ls, calls
list_options   the filters and the sorting of lists
ask            search, stats
cost           cost
tail           tail
show           show
view           view
people         waiting, answer
"""
