"""What several dialects use.

answer_composition make a whole answer of what it says
answer_forms       whether a request asks for a streamed answer, and in which form
assembly           read a whole or streamed body into an answer
error_bodies       error bodies that several APIs have
pieces             join values that are streamed in pieces
placed_pieces      join pieces that name their place by a path
stream_writing     write server-sent events and lines of JSON
token_counts       token counts in headers, and their sums
unclaimed_kinds    the kind of a request to a known service that no dialect claims
"""
