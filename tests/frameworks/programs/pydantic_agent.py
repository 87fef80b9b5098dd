"""pydantic-ai: tools that run side by side, then a stream."""

import asyncio
import json

import httpx
from pydantic_ai import Agent

agent = Agent("openai-chat:gpt-4o-mini", system_prompt="Know the weather.")


@agent.tool_plain
async def weather(city: str) -> str:
    """The weather in a city."""
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get("https://weather.example/v1/now", params={"city": city})).text


async def main():
    script = '[[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.'
    first = await agent.run(script)
    async with agent.run_stream(script + " Really.", message_history=first.all_messages()) as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    results = [
        part.content for message in first.all_messages() for part in message.parts if part.part_kind == "tool-return"
    ]
    print(json.dumps({"said": first.output, "results": results, "pieces": pieces}, indent=1))


asyncio.run(main())
