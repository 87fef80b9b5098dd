"""Decide who may do what, and note who did it.

api_tokens    tokens with their projects, scopes and expiry
grants        what one request may do
audit_log     who read, exported, changed or deleted what
"""
