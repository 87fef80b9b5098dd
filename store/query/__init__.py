"""Read what was recorded.

runs               list, name, label, end and delete runs
exchanges          read exchanges and calls
filters            filters and pages of lists
answer_search      search the text of answers
call_graph         the call graph of a run, for REST
call_summaries     what a list shows of a call
mcp_late_calls     add late MCP answers to their calls
drift              changes of a model behind its name
rekey              key stored calls again
rows_export        send a run's rows to a replay
rest_shapes        rows in the shapes of the REST API
"""
