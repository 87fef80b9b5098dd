"""Ask a model API with Python clients: `python ask.py CLIENT,… BASE_URL…`. Each prints what it got from each as a JSON line.

Clients that show the bytes print their digest; the SDKs print what they made of them.
"""

import asyncio
import hashlib
import json
import subprocess
import sys
import urllib.request

CHAT = {"model": "example-large", "messages": [{"role": "user", "content": "refund?"}]}
STREAMED = {**CHAT, "stream": True}
MESSAGES = {"model": "claude-example", "max_tokens": 64, "messages": [{"role": "user", "content": "refund?"}]}
HEADERS = {"content-type": "application/json", "authorization": "Bearer sk-live-0123456789abcdef0123456789abcdef"}


def digest(data: bytes) -> dict[str, str | int]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def urllib_(base):
    request = urllib.request.Request(f"{base}/v1/chat/completions", json.dumps(STREAMED).encode(), HEADERS)
    with urllib.request.urlopen(request, timeout=30) as response:
        return digest(response.read())


def requests_(base):
    import requests

    with requests.post(f"{base}/v1/chat/completions", json=STREAMED, headers=HEADERS, stream=True, timeout=30) as got:
        return digest(b"".join(got.iter_content(None)))


def httpx_(base, module="httpx", **options):
    httpx = __import__(module)
    with (
        httpx.Client(timeout=30, **options) as client,
        client.stream("POST", f"{base}/v1/chat/completions", json=STREAMED, headers=HEADERS) as response,
    ):
        return {**digest(b"".join(response.iter_raw())), "http": response.http_version}


def httpx_h2(base):
    return httpx_(base, http2=True)


def httpx2_(base):
    return httpx_(base, "httpx2")


async def httpx_async(base):
    import httpx

    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", f"{base}/v1/chat/completions", json=STREAMED, headers=HEADERS) as response,
    ):
        return digest(b"".join([data async for data in response.aiter_raw()]))


async def aiohttp_(base, *, trust_env=True):
    import aiohttp

    async with (
        aiohttp.ClientSession(trust_env=trust_env) as session,
        session.post(f"{base}/v1/chat/completions", json=STREAMED, headers=HEADERS) as response,
    ):
        return digest(await response.read())


async def aiohttp_alone(base):
    return await aiohttp_(base, trust_env=False)


def curl(base, *options):
    line = ["curl", "-sS", "--fail", "--no-buffer", *options, "--data", json.dumps(STREAMED)]
    headers = [word for name, value in HEADERS.items() for word in ("-H", f"{name}: {value}")]
    done = subprocess.run([*line, *headers, f"{base}/v1/chat/completions"], capture_output=True, check=True)
    return digest(done.stdout)


def curl_h1(base):
    return curl(base, "--http1.1")


def curl_h2(base):
    return curl(base, "--http2")


def openai_client(base, kind="OpenAI"):
    import openai

    key = HEADERS["authorization"].removeprefix("Bearer ")
    return getattr(openai, kind)(api_key=key, base_url=f"{base}/v1", max_retries=0)


def openai_whole(base):
    return openai_client(base).chat.completions.create(**CHAT).model_dump()


def openai_streamed(base):
    return [chunk.model_dump() for chunk in openai_client(base).chat.completions.create(**STREAMED)]


async def openai_async(base):
    return (await openai_client(base, "AsyncOpenAI").chat.completions.create(**CHAT)).model_dump()


async def openai_async_streamed(base):
    stream = await openai_client(base, "AsyncOpenAI").chat.completions.create(**STREAMED)
    return [chunk.model_dump() async for chunk in stream]


def anthropic_client(base, kind="Anthropic"):
    import anthropic

    return getattr(anthropic, kind)(api_key="sk-ant-api03-0123456789abcdef", base_url=base, max_retries=0)


def anthropic_whole(base):
    return anthropic_client(base).messages.create(**MESSAGES).model_dump()


def anthropic_streamed(base):
    with anthropic_client(base).messages.stream(**MESSAGES) as stream:
        return [event.model_dump() for event in stream]


async def anthropic_async(base):
    return (await anthropic_client(base, "AsyncAnthropic").messages.create(**MESSAGES)).model_dump()


async def anthropic_async_streamed(base):
    async with anthropic_client(base, "AsyncAnthropic").messages.stream(**MESSAGES) as stream:
        return [event.model_dump() async for event in stream]


def main(clients, *bases):
    for client in clients.split(","):
        ask = globals().get(f"{client}_") or globals()[client]
        for base in bases:
            got = ask(base)
            print(json.dumps(asyncio.run(got) if asyncio.iscoroutine(got) else got, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
