"""Decide who may do what, and note who did it.

api_tokens    tokens with their projects, scopes and expiry
grants        what one request may do
sessions      sessions of the web page
audit_log     who read, exported, changed or deleted what
"""
