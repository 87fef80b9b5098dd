"""Limit what clients of the API may take before they are answered.

connections       connections, and heads of requests
request_bodies    bodies of requests
"""
