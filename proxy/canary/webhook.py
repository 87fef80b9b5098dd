"""Tell a webhook that a model has changed. It is told once, so an attempt that fails is repeated."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

TIMEOUT: Final = 10.0

PAUSES: Final = (2.0, 20.0)
"""Seconds before each further attempt: a service that is started anew is back by then."""

_REPEATED: Final = (408, 429)
"""Statuses below 500 after which another attempt may succeed."""


async def call_webhook(
    url: str, canary_state: Mapping[str, Any], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> str | None:
    """Post a canary to its webhook. Return why that failed.

    The failure names the host only: whoever knows the URL of a webhook may post to it.
    """
    problem = ""
    async with httpx2.AsyncClient(timeout=TIMEOUT) as client:
        for pause in (0.0, *PAUSES):
            await sleep(pause)
            try:
                answer = await client.post(url, json=_message(canary_state))
            except httpx2.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code < 300:
                return None
            problem = f"it answered {answer.status_code}"
            if answer.status_code < 500 and answer.status_code not in _REPEATED:
                break
    return f"the webhook at {urlsplit(url).hostname} was not told: {problem}"


def _message(canary_state: Mapping[str, Any]) -> dict[str, Any]:
    # Slack and Mattermost show `text` and ignore all else.
    text = f"Playhead: the model of canary {canary_state['name']} changed: {canary_state['reason']}"
    return {"event": "canary.changed", "text": text, "canary": dict(canary_state)}
