"""Replay WebSockets.

session           answer with a recorded WebSocket, and refuse clients that diverge from it
timeline          decide when each recorded message is sent
conversations     several conversations over one WebSocket
mcp_stream        MCP's streams, whose parts wait for requests
mcp_listening     which requests the events of MCP's listening streams wait for
"""
