"""An MCP server over Streamable HTTP: `mcp_server.py PORT`. Its answers differ every time."""

import json
import random
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

server = MCPServer("weather")


@server.tool()
def weather(city: str) -> str:
    """The weather in a city."""
    return json.dumps({"city": city, "degrees": random.randrange(-20, 40), "number": random.random()})


# It is asked by the name that the agent knows, and not by where it listens.
named = TransportSecuritySettings(allowed_hosts=["tools.example"])
server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]), transport_security=named)
