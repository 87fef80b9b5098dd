"""Copy a recorded exchange as a command, code or a file. Pure.

What was sent is in the result byte by byte, except for secrets: each becomes an environment variable, and no placeholder of
a recording is ever in a result.

snippet            choose the form, and say what a result lacks
secret_variables   name the environment variables that stand for secrets
sent_request       a request as pieces of bytes and variables
curl               a request as a command for a shell
python_code        a request as Python, or as a test for pytest
one_step           an exchange as a bundle, HTTP archive or VCR cassette
"""
