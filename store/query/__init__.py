"""Read what was recorded.

runs               list, name, label, end and delete runs
run_stats          the statistics of runs, from stored sums or from calls
exchange_reader    read exchanges as they crossed the wire
call_reader        read calls, derived from exchanges
filters            the filters of lists
pages              the sorting and the pages of lists
call_graph         the call graph of a run, for REST
run_graphs         keep the call graphs of runs between their pages
call_summaries     what a list shows of a call
mcp_late_calls     add late MCP answers to their calls
run_cost           where the money of a run went
prompt_parts       divide prompts into parts that later requests repeat
stats              sum up calls in groups
audit_entries      list the audit log
rekey              compute the keys of stored calls again
rows_export        send a run's rows to a replay
rest_shapes        rows in the shapes of the REST API
"""
