"""vLLM with attention that does not depend on the batch, and a server that proves it before it says so.

Imported by vLLM in every one of its processes, so this file imports nothing: vLLM only logs what fails on import.
"""
