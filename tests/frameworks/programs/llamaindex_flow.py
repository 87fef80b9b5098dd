"""LlamaIndex: a function agent in a workflow, with its stream of events."""

import asyncio
import json

import httpx
from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.llms.openai import OpenAI

# The workflow hands results to the model in the order in which its tools end, so that they end in one order each time.
one_at_a_time = asyncio.Lock()


async def weather(city: str) -> str:
    """The weather in a city."""
    async with one_at_a_time, httpx.AsyncClient(timeout=60) as client:
        return (await client.get("https://weather.example/v1/now", params={"city": city})).text


async def main():
    agent = FunctionAgent(tools=[weather], llm=OpenAI(model="gpt-4o-mini"), system_prompt="Know the weather.")
    handler = agent.run(user_msg='[[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.')
    pieces, results = [], []
    async for event in handler.stream_events():
        if isinstance(event, AgentStream):
            pieces.append(event.delta)
        elif isinstance(event, ToolCallResult):
            results.append([event.tool_name, event.tool_kwargs, str(event.tool_output)])
    said = str(await handler)
    print(json.dumps({"pieces": pieces, "results": sorted(results, key=str), "said": said}, indent=1))


asyncio.run(main())
