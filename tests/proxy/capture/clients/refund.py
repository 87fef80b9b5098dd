"""An agent that calls a model by its SDK, and makes a refund with a client that reads no proxy variable: `refund.py ZONE [plain]`.

`plain` calls the model without the SDK, which takes a second to import.
"""

import asyncio
import sys

import aiohttp

ZONE = sys.argv[1]
MODEL_API = f"https://api.{ZONE}/v1"
PROMPT = "Refund ticket 904."


async def ask_by_sdk() -> str | None:
    import openai

    client = openai.AsyncOpenAI(base_url=MODEL_API, api_key="sk-test-0123456789abcdefghij")
    said = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": PROMPT}])
    return said.choices[0].message.content


async def ask_plainly() -> str:
    asked = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    async with aiohttp.ClientSession() as session, session.post(f"{MODEL_API}/chat/completions", json=asked) as said:
        content: str = (await said.json())["choices"][0]["message"]["content"]
        return content


async def main() -> None:
    print(await (ask_plainly() if "plain" in sys.argv else ask_by_sdk()))
    refund = f"https://shop.{ZONE}/refunds"
    async with aiohttp.ClientSession() as session, session.post(refund, json={"ticket": 904}) as made:
        print(made.status, await made.text())


asyncio.run(main())
