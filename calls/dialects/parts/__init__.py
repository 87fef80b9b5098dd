"""What several dialects use.

assembly         read a whole or streamed body into an answer
pieces           join values that are streamed in pieces
placed_pieces    join pieces that name their place by a path
token_counts     token counts in headers, and their sums
"""
