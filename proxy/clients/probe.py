"""Request a URL with one Python client: `python probe.py CLIENT URL`. Exit status 42: the client is not installed.

It runs under the agent's Python, so it uses nothing newer than Python 3.8. It prints the client's version before the
request.
"""

import sys

NOT_INSTALLED = 42
TIMEOUT = 15


def urllib(url):
    import platform
    import urllib.request

    yield platform.python_version()
    yield urllib.request.urlopen(url, timeout=TIMEOUT).read()  # noqa: S310 - doctor gives it an https URL


def requests(url):
    import requests

    yield requests.__version__
    yield requests.get(url, timeout=TIMEOUT).content


def httpx(url):
    import httpx

    yield httpx.__version__
    yield httpx.get(url, timeout=TIMEOUT).content


def httpx2(url):
    import httpx2

    yield httpx2.__version__
    yield httpx2.get(url, timeout=TIMEOUT).content


def aiohttp(url, **options):
    import asyncio

    import aiohttp

    async def get():
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout, **options) as session, session.get(url) as response:
            return await response.read()

    yield aiohttp.__version__
    yield asyncio.run(get())


def aiohttp_trust_env(url):
    return aiohttp(url, trust_env=True)


def openai(url):
    import openai

    yield openai.__version__
    yield openai.OpenAI(api_key="none", base_url=url, timeout=TIMEOUT, max_retries=0).models.list()


def anthropic(url):
    import anthropic

    yield anthropic.__version__
    yield anthropic.Anthropic(api_key="none", base_url=url, timeout=TIMEOUT, max_retries=0).models.list()


def main(client, url):
    probe = {name: value for name, value in globals().items() if callable(value)}[client](url)
    try:
        version = next(probe)
    except ImportError:
        sys.exit(NOT_INSTALLED)
    sys.stdout.write(version + "\n")
    sys.stdout.flush()
    next(probe)


if __name__ == "__main__":
    main(*sys.argv[1:])
