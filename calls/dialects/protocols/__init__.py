"""Protocols that any host may speak.

mcp        the Model Context Protocol
a2a        Agent to Agent
jsonrpc    JSON-RPC 2.0, on which both are built
graphql    GraphQL over HTTP
"""
