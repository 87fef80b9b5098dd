"""Replay WebSockets.

session           answer with a recorded WebSocket, and refuse clients that diverge from it
timeline          decide when each recorded message is sent
conversations     several conversations over one WebSocket
mcp_sse_stream    the event stream of MCP's older transport
mcp_stream_order  MCP's streams of today, whose parts wait for requests
"""
