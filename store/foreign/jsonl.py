"""Read fixtures of llm-fixture-replay: a line for each call of a function, with a digest of its arguments.

A line holds `hash`, `args_repr`, `kwargs_repr` and `response_json`: the arguments as Python wrote them down, and what the
function returned. That is no HTTP. Where the arguments are those of a model API's SDK and the answer is what that API
answers, the request that the SDK would have sent is rebuilt from them; any other line is skipped, and says why.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from calls.codec.json import NotLossless, lenient
from calls.model import Request, Response
from store.foreign.contents import (
    REBUILT,
    UNCHUNKED,
    UNTIMED,
    UNVERSIONED,
    Broken,
    Found,
    Interaction,
    NotReadable,
    SkippedEntry,
)
from store.foreign.parts import body, json_bytes, moment, url

LONGEST_REPR: Final = 4 << 20
_JSON: Final = (("content-type", "application/json"),)
_NOT_SENT: Final = frozenset(("extra_headers", "extra_query", "extra_body", "timeout"))
"""Keyword arguments of the SDKs that say how to send, not what."""


def read(lines: Iterable[bytes]) -> Iterator[Found]:
    """The lines that can be replayed on the wire, and why the others cannot. Of equal calls the last line counts."""
    found: dict[object, Found] = {}
    number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            told = _told(line)
            # Its own look-up takes the newest line of a digest: an older one was recorded again.
            found.pop(key := told["hash"] or place, None)
            found[key] = _interaction(place, told)
        except Broken as error:
            found[place] = SkippedEntry(place=place, reason=str(error))
    if not found:
        raise NotReadable("it holds no lines")
    return iter(found.values())


def _told(line: bytes) -> Mapping[str, Any]:
    try:
        value: Any = lenient(line)
    except NotLossless:
        raise Broken("it is not JSON") from None
    if not isinstance(value, dict) or not value.keys() & {"response_json", "response"}:
        raise Broken("it holds no response")
    key = value.get("hash", value.get("key"))
    if key is not None and not isinstance(key, str | dict):
        raise Broken("its key is neither a text nor a request")
    return {**value, "hash": key if isinstance(key, str) else None}


def _interaction(place: str, told: Mapping[str, Any]) -> Interaction:
    answer = told.get("response_json", told.get("response"))
    asked = _asked(told)
    address = told.get("url") or _address(answer, asked)
    if address is None:
        raise Broken(
            "its answer is not what a model API answers, so nobody knows which request it belongs to: "
            "it holds the call of a function, not of an API; record the call itself"
        )
    return Interaction(
        place=place,
        request=Request(method="POST", url=url(address), http_version="", headers=_JSON, body=body(json_bytes(asked))),
        response=Response(status=200, reason="OK", http_version="", headers=_JSON, body=body(json_bytes(answer))),
        started_at=moment(told.get("recorded_at"), lambda text: datetime.fromisoformat(text).timestamp()),
        notes=(REBUILT, UNTIMED, UNCHUNKED, UNVERSIONED),
    )


def _asked(told: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the request. Raises Broken."""
    for name in ("request", "key"):
        if isinstance(told.get(name), dict):
            return dict(told[name])
    args, kwargs = _literal(told.get("args_repr"), "()"), _literal(told.get("kwargs_repr"), "{}")
    if isinstance(args, tuple) and len(args) == 1 and isinstance(args[0], dict) and not kwargs:
        kwargs = args[0]
    elif args != ():
        raise Broken("its arguments are not those of a model API's SDK, which takes names only")
    if not isinstance(kwargs, dict) or not kwargs:
        raise Broken("it holds a digest of its request, and not the request: nothing on the wire can match it")
    sent = {str(name): value for name, value in kwargs.items() if name not in _NOT_SENT}
    extra = kwargs.get("extra_body")
    return {**sent, **extra} if isinstance(extra, dict) else sent


def _literal(text: object, default: str) -> Any:
    """What a `repr` says, where it is made of literals; nothing is evaluated."""
    text = default if text is None else text
    if not isinstance(text, str) or len(text) > LONGEST_REPR:
        raise Broken("its arguments are no text, or a very long one")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Broken("its arguments hold objects of Python, which nobody can read back") from None


def _address(answer: object, asked: Mapping[str, Any]) -> str | None:
    """Where a request with this answer goes: each API marks its answers."""
    if not isinstance(answer, Mapping):
        return None
    match answer:
        case {"object": "chat.completion"}:
            return "https://api.openai.com/v1/chat/completions"
        case {"object": "text_completion"}:
            return "https://api.openai.com/v1/completions"
        case {"object": "response"}:
            return "https://api.openai.com/v1/responses"
        case {"object": "list"} if "input" in asked:
            return "https://api.openai.com/v1/embeddings"
        case {"type": "message", "role": "assistant"}:
            return "https://api.anthropic.com/v1/messages"
        case _:
            return None
