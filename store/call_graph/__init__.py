"""Which calls of a run belong together.

call_graph     which answer a request continues, and which calls a tool loop made
call_ids       the ids by which calls are connected
retry_query    find the exchanges that are one call
"""
