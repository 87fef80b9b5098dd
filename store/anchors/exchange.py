"""Send one request to a witness or a timestamp authority, and read a bounded response."""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx2

from store.anchors.failure import AnchorFailure

TIMEOUT: Final = 10.0
"""Seconds for each of connecting, sending and reading."""

LONGEST_ANSWER: Final = 64 << 10
"""Bytes that are read of a response."""


class Answer(NamedTuple):
    """A response."""

    status: int
    kind: str
    """Its media type without parameters."""

    content: bytes


def make_client() -> httpx2.AsyncClient:
    """Return a client. It uses no proxy of the environment: that may be Playhead itself."""
    return httpx2.AsyncClient(timeout=httpx2.Timeout(TIMEOUT), trust_env=False)


async def post(client: httpx2.AsyncClient, url: str, content: bytes, kind: str) -> Answer:
    """Send a request and read its response. Raises `AnchorFailure` where there is none."""
    host = urlsplit(url).netloc
    try:
        async with client.stream("POST", url, content=content, headers={"content-type": kind}) as response:
            read = b""
            async for piece in response.aiter_bytes():
                read += piece
                if len(read) > LONGEST_ANSWER:
                    raise AnchorFailure(
                        f"{host} answers with more than {LONGEST_ANSWER} bytes, which is not an answer of its kind"
                    )
            media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            return Answer(response.status_code, media_type, read)
    except httpx2.TimeoutException as error:
        raise AnchorFailure(f"{host} does not answer within {TIMEOUT:g} seconds") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise AnchorFailure(f"{host} does not answer: {str(error) or type(error).__name__}") from error
