"""Ask a model over HTTP with the standard library: OpenAI's chat completions, and Anthropic's messages for `claude-*`.

https://platform.openai.com/docs/api-reference/chat/create
https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playhead.workflow.values import Json

TIMEOUT = 600.0
"""Seconds."""

_MOST_TOKENS = 4096
"""For Anthropic, which requires a limit, where the step names none."""


class ModelError(RuntimeError):
    """A model that did not answer. The message says what it said."""


def ask_model(request: Mapping[str, Json]) -> dict[str, Json]:
    """Send a request with `model`, `messages` and the API's own parameters; return `text`, `model`, `fingerprint` and `usage`.

    `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL` and `ANTHROPIC_API_KEY` are those of the official SDKs. Raises ModelError.
    """
    if str(request["model"]).startswith("claude"):
        return _ask_anthropic(request)
    base = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    key = os.environ.get("OPENAI_API_KEY", "")
    answer = _post(f"{base.rstrip('/')}/chat/completions", request, {"authorization": f"Bearer {key}"} if key else {})
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ModelError(f"{request['model']} answered without a message: {_short(answer)}") from None
    return {
        "text": text if isinstance(text, str) else "",
        "model": answer.get("model"),
        "fingerprint": answer.get("system_fingerprint"),
        "usage": answer.get("usage"),
    }


def _ask_anthropic(request: Mapping[str, Json]) -> dict[str, Json]:
    base = os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
    headers = {"anthropic-version": "2023-06-01", "x-api-key": os.environ.get("ANTHROPIC_API_KEY", "")}
    answer = _post(f"{base.rstrip('/')}/v1/messages", {"max_tokens": _MOST_TOKENS, **request}, headers)
    content = answer.get("content")
    if not isinstance(content, list):
        raise ModelError(f"{request['model']} answered without content: {_short(answer)}")
    texts = (str(part.get("text", "")) for part in content if isinstance(part, dict) and part.get("type") == "text")
    return {"text": "".join(texts), "model": answer.get("model"), "fingerprint": None, "usage": answer.get("usage")}


def _post(url: str, content: Mapping[str, Json], headers: Mapping[str, str]) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ModelError(f"{url} is not an http address")
    request = urllib.request.Request(  # noqa: S310 - checked above
        url, data=json.dumps(content).encode(), headers={"content-type": "application/json", **headers}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - checked above
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise ModelError(f"{url} answered {error.code}: {error.read(500).decode('utf-8', 'replace')}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{url} gave no answer: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{url} answered with something other than a JSON object: {_short(found)}")
    return found


def _short(value: Any) -> str:
    return json.dumps(value)[:200]
