"""Sums over calls: stored for each run and hour, and made from the calls themselves where those do not serve.

latency_classes   divide latencies into classes of which each is 2 % longer than the one before
value_classes     divide costs and durations into classes that begin at round numbers
call_rows         one row for each exchange, or for the equal ones of an hour, with what sums are made of
run_sums          a consumer of the feed that keeps the sums of each run
run_facets        keep what lists of runs show, sort by and filter by
run_lists         find the runs of a list by their sums
facets            count the values of runs for filters, and load what a list shows beside its runs
positions         whether the sums have been made, and up to where in the feed
attempt_marks     note which calls failed in the end, and which exchanges are earlier attempts or repeated polls
summed_days       forget the sums of whole days when something of them changes
day_sums          keep the sums of whole days over all runs
tool_names        find tools whose names begin as a filter says
call_metrics      count calls for Prometheus
"""
