"""Replay WebSockets.

session           a WebSocket session as an answer
timeline          which recorded messages are sent when
conversations     several conversations over one WebSocket
mcp_sse_stream    the event stream of MCP's older transport
"""
