"""Read fixtures of llm-fixture-replay: a line for each call of a function, with a digest of its arguments.

A line has `hash`, `args_repr`, `kwargs_repr` and `response_json`: the `repr` of the arguments, and what the function
returned. That is not HTTP. Where the arguments are those of a model API's SDK and the value is an answer of that API, the
request that the SDK would have sent is rebuilt; any other line is skipped with a reason.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.model import Request, Response
from store.foreign.contents import (
    REBUILT,
    UNCHUNKED,
    UNTIMED,
    UNVERSIONED,
    BrokenInteraction,
    Found,
    Interaction,
    NotReadable,
    SkippedEntry,
)
from store.foreign.parts import checked_url, json_bytes, one_chunk_body, timestamp_ns

LONGEST_REPR: Final = 4 << 20
_JSON: Final = (("content-type", "application/json"),)
_NOT_SENT: Final = frozenset(("extra_headers", "extra_query", "extra_body", "timeout"))
"""Keyword arguments of the SDKs that control the sending and are not part of the body."""


def read_jsonl(lines: Iterable[bytes]) -> Iterator[Found]:
    """Read the lines that can be replayed, and why the others cannot. Of lines with the same digest, the last one counts."""
    entries: dict[object, Found] = {}
    number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            raw = _parse_line(line)
            # As llm-fixture-replay does: a later line with the same digest replaces an earlier recording.
            entries.pop(key := raw["hash"] or place, None)
            entries[key] = _interaction(place, raw)
        except BrokenInteraction as error:
            entries[place] = SkippedEntry(place=place, reason=str(error))
    if not entries:
        raise NotReadable("it has no lines; record it again")
    return iter(entries.values())


def _parse_line(line: bytes) -> Mapping[str, Any]:
    try:
        value: Any = parse_json_leniently(line)
    except InvalidJson:
        raise BrokenInteraction("it is not JSON") from None
    if not isinstance(value, dict) or not value.keys() & {"response_json", "response"}:
        raise BrokenInteraction("it has no response")
    key = value.get("hash", value.get("key"))
    if key is not None and not isinstance(key, str | dict):
        raise BrokenInteraction("its key is neither text nor a request")
    return {**value, "hash": key if isinstance(key, str) else None}


def _interaction(place: str, raw: Mapping[str, Any]) -> Interaction:
    answer = raw.get("response_json", raw.get("response"))
    arguments = _request_arguments(raw)
    address = raw.get("url") or _api_url(answer, arguments)
    if address is None:
        raise BrokenInteraction(
            "its answer is not that of a model API, so its request is unknown: "
            "it records the call of a function, not of an API; record the API call itself"
        )
    return Interaction(
        place=place,
        request=Request(
            method="POST",
            url=checked_url(address),
            http_version="",
            headers=_JSON,
            body=one_chunk_body(json_bytes(arguments)),
        ),
        response=Response(
            status=200, reason="OK", http_version="", headers=_JSON, body=one_chunk_body(json_bytes(answer))
        ),
        started_at=timestamp_ns(raw.get("recorded_at"), lambda text: datetime.fromisoformat(text).timestamp()),
        notes=(REBUILT, UNTIMED, UNCHUNKED, UNVERSIONED),
    )


def _request_arguments(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request as a mapping. Raises BrokenInteraction."""
    for name in ("request", "key"):
        if isinstance(raw.get(name), dict):
            return dict(raw[name])
    args, kwargs = _literal(raw.get("args_repr"), "()"), _literal(raw.get("kwargs_repr"), "{}")
    if isinstance(args, tuple) and len(args) == 1 and isinstance(args[0], dict) and not kwargs:
        kwargs = args[0]
    elif args != ():
        raise BrokenInteraction("it has positional arguments, which the SDK of a model API does not take")
    if not isinstance(kwargs, dict) or not kwargs:
        raise BrokenInteraction(
            "it has a digest of its request instead of the request, so no request can be matched with it"
        )
    body = {str(name): value for name, value in kwargs.items() if name not in _NOT_SENT}
    extra = kwargs.get("extra_body")
    return {**body, **extra} if isinstance(extra, dict) else body


def _literal(text: object, default: str) -> Any:
    """Parse a `repr` that consists of literals; nothing is evaluated. Raises BrokenInteraction."""
    text = default if text is None else text
    if not isinstance(text, str) or len(text) > LONGEST_REPR:
        raise BrokenInteraction("its arguments are not text, or too long")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BrokenInteraction("its arguments contain Python objects, which cannot be read back") from None


def _api_url(answer: object, arguments: Mapping[str, Any]) -> str | None:
    """Return the URL of the API that gives such answers; each API marks them."""
    if not isinstance(answer, Mapping):
        return None
    match answer:
        case {"object": "chat.completion"}:
            return "https://api.openai.com/v1/chat/completions"
        case {"object": "text_completion"}:
            return "https://api.openai.com/v1/completions"
        case {"object": "response"}:
            return "https://api.openai.com/v1/responses"
        case {"object": "list"} if "input" in arguments:
            return "https://api.openai.com/v1/embeddings"
        case {"type": "message", "role": "assistant"}:
            return "https://api.anthropic.com/v1/messages"
        case _:
            return None
