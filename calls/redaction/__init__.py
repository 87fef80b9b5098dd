"""Find and replace secrets before anything is stored.

redactor    the entry: redact heads, bodies, texts
head        headers and URLs
body        bodies, in pieces
declared    secrets that a profile declares by their path
call        the assembled call
rules       what a secret looks like
scanning    search bytes, also through escapes and base64
streams     search texts that are streamed in pieces
"""
