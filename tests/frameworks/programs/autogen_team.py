"""AutoGen: an assistant with a tool, its run streamed."""

import asyncio
import json

import httpx
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def weather(city: str) -> str:
    """The weather in a city."""
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get("https://weather.example/v1/now", params={"city": city})).text


async def main():
    model = OpenAIChatCompletionClient(model="gpt-4o-mini")
    agent = AssistantAgent(
        "forecaster", model_client=model, tools=[weather], reflect_on_tool_use=True, model_client_stream=True
    )
    events = agent.run_stream(task='[[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.')
    result = [[type(event).__name__, str(getattr(event, "content", ""))] async for event in events]
    print(json.dumps(result, indent=1))


asyncio.run(main())
