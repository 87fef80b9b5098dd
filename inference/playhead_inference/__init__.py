"""Batch-invariant vLLM, and a server that checks the invariance before it claims it.

vLLM imports this package in each of its processes and only logs a failed import, so this file imports nothing.
"""
