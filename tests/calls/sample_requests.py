"""Requests as tests write them."""

import json
from typing import Any

from calls.keys.key import KeyResult, make_key
from calls.model import Body, Headers, Request
from store.active_profiles import load_profiles

PROFILES = load_profiles()

OPENAI = "https://api.openai.com/v1/chat/completions"
ANTHROPIC = "https://api.anthropic.com/v1/messages"
TICKETS = "https://tickets.example.com/v2/search"

VERSION = ("anthropic-version", "2023-06-01")


def request(url: str, body: bytes = b"", *headers: tuple[str, str], method: str = "POST") -> Request:
    """A request with this body."""
    return Request(method=method, url=url, headers=headers, body=Body(data=body, size=len(body)))


def json_request(url: str, body: Any, *headers: tuple[str, str]) -> Request:
    """A request with this value as its JSON body."""
    kept: Headers = (("content-type", "application/json"), *headers)
    return request(url, body if isinstance(body, bytes) else json.dumps(body).encode(), *kept)


def key(url: str, body: Any, *headers: tuple[str, str]) -> str:
    """The key of a request with this body."""
    return make_key(json_request(url, body, *headers), PROFILES).key


def explained_key(url: str, body: Any, *headers: tuple[str, str]) -> KeyResult:
    """How the key of a request with this body comes about."""
    return make_key(json_request(url, body, *headers), PROFILES)


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    """A chat request, of OpenAI's or Anthropic's shape."""
    return {"model": "m", "messages": list(messages), **fields}


def user(content: Any) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": content}
