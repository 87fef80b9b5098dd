"""Sums over calls: stored for each run and hour, and made from the calls themselves where those do not serve.

latency_classes   divide latencies into classes of which each is 2 % longer than the one before
call_rows         one row for each exchange, or for the equal ones of an hour, with what sums are made of
run_sums          a consumer of the feed that keeps the sums of each run
facets            count the values of runs for filters, and load what a list shows beside its runs
positions         whether the sums have been made, and up to where in the feed
attempt_marks     note which calls failed in the end, and which exchanges are earlier attempts or repeated polls
summed_days       forget the sums of whole days when something of them changes
day_sums          keep the sums of whole days over all runs
call_metrics      count calls for Prometheus
"""
