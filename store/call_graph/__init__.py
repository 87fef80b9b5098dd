"""How the calls of a run are connected.

call_graph     which answer a request continues, and which call executed a tool call
packed_graph   the call graph of a run in arrays
call_ids       the ids by which calls are connected
retry_query    find the exchanges that are attempts of one call
"""
