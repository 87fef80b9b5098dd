"""Convert a recorded answer to the form that a request wants.

adapt_answer    adapt an answer to the request that it answers
reframe         write an answer as a stream, or whole
id_pairs        tell by their ids which of several equal requests was meant
echoed_ids      replace ids that a client draws anew and answers repeat
id_rewrite      replace ids that the client makes
readdress       replace the ids of JSON-RPC
resumed_streams the same on streams that continue where another broke off
"""
