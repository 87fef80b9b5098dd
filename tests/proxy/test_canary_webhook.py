"""How a webhook is told that a model has changed: once, so what fails for a moment is repeated."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.canary.webhook import PAUSES, call_webhook

STATE = {"name": "refunds", "verdict": "changed", "reason": "gpt-6 answers where gpt-5 did"}


@asynccontextmanager
async def running_hook(*statuses: int) -> AsyncIterator[tuple[str, list[Any]]]:
    """A webhook that answers with these statuses, one after the other: its URL, and what it was sent."""
    received: list[Any] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        received.append(json.loads(await reader.readexactly(size)))
        status = statuses[len(received) - 1]
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/services/T0/the-secret-part", received


async def call_and_note_pauses(url: str) -> tuple[str | None, list[float]]:
    pauses: list[float] = []

    async def note_pause(seconds: float) -> None:
        pauses.append(seconds)

    return await call_webhook(url, STATE, note_pause), pauses[1:]


async def test_a_webhook_that_is_down_for_a_moment_is_told_later() -> None:
    async with running_hook(503, 429, 200) as (url, received):
        assert await call_and_note_pauses(url) == (None, list(PAUSES))
    assert len(received) == 3


async def test_what_is_sent_can_be_read_in_a_chat() -> None:
    async with running_hook(200) as (url, received):
        assert await call_and_note_pauses(url) == (None, [])
    assert received == [
        {
            "event": "canary.changed",
            "text": "Playhead: the model of canary refunds changed: gpt-6 answers where gpt-5 did",
            "canary": STATE,
        }
    ]


@pytest.mark.parametrize("statuses", [(404,), (500, 500, 500)])
async def test_a_failure_does_not_show_the_secret_in_the_url(statuses: tuple[int, ...]) -> None:
    async with running_hook(*statuses) as (url, received):
        problem, _ = await call_and_note_pauses(url)
    assert problem == f"the webhook at 127.0.0.1 was not told: it answered {statuses[-1]}"
    assert len(received) == len(statuses)


async def test_a_webhook_that_nobody_serves_is_named() -> None:
    async with running_hook() as (url, _):
        pass
    problem, pauses = await call_and_note_pauses(url)
    assert problem is not None
    assert problem.startswith("the webhook at 127.0.0.1 was not told: Connect")
    assert "the-secret-part" not in problem
    assert pauses == list(PAUSES)
