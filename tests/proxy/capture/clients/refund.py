"""An agent that calls a model by its SDK, and makes a refund with a client that reads no proxy variable."""

import asyncio
import sys

import aiohttp
import openai

ZONE = sys.argv[1]


async def main() -> None:
    client = openai.AsyncOpenAI(base_url=f"https://api.{ZONE}/v1", api_key="sk-test-0123456789abcdefghij")
    said = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Refund ticket 904."}])
    print(said.choices[0].message.content)
    refund = f"https://shop.{ZONE}/refunds"
    async with aiohttp.ClientSession() as session, session.post(refund, json={"ticket": 904}) as made:
        print(made.status, await made.text())


asyncio.run(main())
