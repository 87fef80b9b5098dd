"""The Agents SDK as a client of an MCP server over Streamable HTTP."""

import asyncio
import json

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp


async def main():
    async with MCPServerStreamableHttp(
        params={"url": "http://tools.example/mcp"}, client_session_timeout_seconds=20
    ) as server:
        agent = Agent(name="forecaster", instructions="Know the weather.", mcp_servers=[server])
        result = await Runner.run(agent, '[[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.')
    items = [json.loads(json.dumps(item.to_input_item(), default=str)) for item in result.new_items]
    print(json.dumps({"said": result.final_output, "items": items}, indent=1))


asyncio.run(main())
