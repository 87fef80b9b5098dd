"""Find and replace secrets before anything is stored.

redactor       the entry point: redact heads, bodies and texts
settings       what a user sets about redaction
head           redact headers and URLs
body           redact bodies in pieces
whole_request  redact a whole request
declared       redact secrets that a profile declares by path
web_tokens     keep the claims of web tokens in answers
call           redact the assembled call
rules          the rules that recognise secrets
scanning       search bytes, including escapes and base64
streams        search texts that are streamed in pieces
"""
