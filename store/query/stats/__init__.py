"""Sum up calls in groups.

stats              load the groups and their sum
groupings          what calls can be grouped by
source             the rows to sum: stored sums, and calls
"""
