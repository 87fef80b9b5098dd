"""Responses are compressed for clients that accept it, and for nobody else."""

import asyncio
import json
import zlib
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from store.api.compression import LEAST, Compression

ROWS = [{"step": number, "model": "gpt-4o-mini"} for number in range(1000)]
LARGE = JSONResponse(ROWS, headers={"vary": "accept"})


async def fetch(response: Response, accepted: str | None, method: str = "GET") -> tuple[dict[str, str], bytes]:
    """Return the headers and the body that a client gets."""
    messages: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await response(scope, receive, send)

    async def receive() -> Message:
        return await asyncio.Future()  # nothing more comes

    async def send(message: Message) -> None:
        messages.append(message)

    headers = [] if accepted is None else [(b"accept-encoding", accepted.encode())]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": "/", "headers": headers}
    await Compression(app)(scope, receive, send)
    head = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return head, b"".join(message.get("body", b"") for message in messages[1:])


@pytest.mark.parametrize("accepted", ["gzip", "deflate, gzip;q=0.8, br", "GZIP;q=1.0"])
async def test_a_large_answer_is_compressed_for_who_accepts_it(accepted: str) -> None:
    head, body = await fetch(LARGE, accepted)
    assert (head["content-encoding"], head["content-length"]) == ("gzip", str(len(body)))
    assert head["vary"] == "accept, accept-encoding"
    assert json.loads(zlib.decompress(body, 31)) == ROWS
    assert len(body) * 8 < len(LARGE.body)


@pytest.mark.parametrize("accepted", [None, "", "br, zstd", "gzip;q=0", "gzip; q=0.000", "identity"])
async def test_others_get_it_as_it_is(accepted: str | None) -> None:
    head, body = await fetch(LARGE, accepted)
    assert "content-encoding" not in head
    assert body == LARGE.body


@pytest.mark.parametrize(
    "response",
    [
        Response(bytes(LEAST - 1), media_type="application/json"),
        Response(bytes(LEAST * 2), media_type="application/octet-stream"),
        Response(bytes(LEAST * 2), media_type="application/json", headers={"content-encoding": "zstd"}),
        StreamingResponse(iter((bytes(LEAST), bytes(LEAST))), media_type="application/json"),
    ],
    ids=["small", "recorded bytes", "encoded already", "in pieces"],
)
async def test_what_gains_nothing_or_is_evidence_stays_as_it_is(response: Response) -> None:
    head, body = await fetch(response, "gzip")
    assert head.get("content-encoding") in (None, "zstd")
    assert not any(body)


async def test_an_answer_that_may_hold_a_token_is_not_compressed() -> None:
    head, body = await fetch(LARGE, "gzip", "POST")
    assert "content-encoding" not in head
    assert body == LARGE.body
