"""Find words in what was said in runs: prompts, answers, tool arguments and results.

words         divide a text of any language into words
query         parse what a person searches for
call_texts    the texts of a call
text_hash     the hash of a text
fresh_texts   hand the texts of calls that were just stored to the index
groups        texts that are stored together, and the words by which a group is found
index         a consumer of the feed that keeps the index of words
lookup        find texts by words, the newest first, and calls and runs by them
lookup_plans  how PostgreSQL searches a span of days
group_lookup  find texts in groups
matching      whether a text of a group fits a query
pages         cut what is found into pages
snippets      the part of a text that shows what was found
"""
