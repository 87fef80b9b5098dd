"""Protocols that any host may speak. Each module declares a dialect, except:

jsonrpc    JSON-RPC 2.0, on which MCP and A2A are built
"""
