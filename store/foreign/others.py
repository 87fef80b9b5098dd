"""Read recordings that have VCR's structure under other names: ExVCR, ReqCassette, nock, llama-stack."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Any, Final

from store.foreign.contents import Broken
from store.foreign.parts import json_bytes

_TERM: Final = b"\x83m"
"""Erlang's external term format: a binary follows, its length in four bytes first."""


def as_vcr(value: Any) -> Any:
    """The interaction under VCR's names; anything that is none of theirs as it is."""
    match value:
        case {"scope": str(scope), "method": _, "path": str(path)}:
            return _nock(scope, path, value)
        case {"request": {"url": _} as asked, "response": {"type": str(), "body": _} as answered}:
            return _exvcr(asked, answered)
        case {"request": {"url": str(), "endpoint": str()} as asked, "response": {"is_streaming": bool()} as answered}:
            return _llama_stack(asked, answered)
        case {"request": Mapping() as asked, "response": {"body_type": str()} as answered}:
            return {**value, "request": _with_body(_with_query(asked)), "response": _with_body(answered)}
        case _:
            return value


# -- ExVCR (Elixir)


def _exvcr(asked: Mapping[str, Any], answered: Mapping[str, Any]) -> Any:
    if answered["type"] != "ok":
        raise Broken(f"it has no response ({answered['body']!r:.80})")
    body = _term(answered["body"]) if answered.get("binary") is True else answered["body"]
    request = {**asked, "body": asked.get("body") or asked.get("request_body")}
    return {"request": request, "response": {**answered, "body": body}}


def _term(text: Any) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (NotBase64, ValueError, TypeError):
        data = b""
    if not data.startswith(_TERM) or int.from_bytes(data[2:6]) != len(data) - 6:
        raise Broken("its response's body is not the binary of Erlang that it should be")
    return data[6:]


# -- ReqCassette (Elixir)


def _with_query(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    query = asked.get("query_string")
    return {**asked, "uri": f"{asked.get('uri')}?{query}"} if query else asked


def _with_body(told: Mapping[str, Any]) -> Mapping[str, Any]:
    match told.get("body_type"):
        case "json":
            return {**told, "parsed_body": told.get("body_json")}
        case "blob":
            return {**told, "body": {"base64_string": told.get("body_blob")}}
        case _:
            return told


# -- nock (Node.js)


def _nock(scope: str, path: str, told: Mapping[str, Any]) -> Any:
    headers = told.get("rawHeaders", told.get("headers"))
    if isinstance(headers, list) and all(isinstance(one, str) for one in headers):
        # Names and values in turn, as Node.js has them.
        headers = [list(pair) for pair in zip(headers[::2], headers[1::2], strict=False)]
    return {
        "request": {
            "method": told["method"],
            "uri": scope.rstrip("/") + path,
            "headers": told.get("reqheaders"),
            **_nock_body(told.get("body")),
        },
        "response": {
            "status": told.get("status"),
            "headers": headers,
            **_nock_body(told.get("response"), binary=told.get("responseIsBinary") is True),
        },
    }


def _nock_body(value: Any, *, binary: bool = False) -> dict[str, Any]:
    """In pieces of hexadecimal where the body was packed, in one where it was no text; parsed where it was JSON."""
    match value:
        case str() if not binary:
            return {"body": value}
        case str() if _is_hex(value):
            return {"body": bytes.fromhex(value)}
        case [str(), *_] if all(isinstance(one, str) and _is_hex(one) for one in value):
            return {"body": b"".join(map(bytes.fromhex, value))}
        case None | "":
            return {}
        case _:
            return {"parsed_body": value}


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and set(text) <= set("0123456789abcdef")


# -- llama-stack, which records what SDKs were asked and gave: objects, each with the name of its class

_CLASS: Final = "__type__"
_VALUE: Final = "__data__"


def _llama_stack(asked: Mapping[str, Any], answered: Mapping[str, Any]) -> Any:
    if answered.get("is_exception") is True:
        raise Broken("its SDK raised an exception, and the response behind it was not kept")
    endpoint = asked["endpoint"]
    # The address ends in the version where the path begins with it: an SDK joins them otherwise.
    url = asked["url"].replace(f"/v1{endpoint}", endpoint) if endpoint.startswith("/v1/") else asked["url"]
    lists = isinstance(answered.get("body"), list) and not answered["is_streaming"]
    # It writes down POST for whatever was asked.
    how = {"method": "GET"} if lists else {"method": asked.get("method"), "parsed_body": asked.get("body")}
    headers = {**({} if lists else {"content-type": "application/json"}), **(asked.get("headers") or {})}
    return {
        "request": {"uri": url, "headers": headers, **how},
        "response": {"status": 200, **_sent(answered.get("body"), streams=answered["is_streaming"])},
    }


def _sent(body: Any, *, streams: bool) -> dict[str, Any]:
    """What an SDK gave, as its server had sent it: events, Ollama's lines, a list in its page, or one value."""
    if not isinstance(body, list) or not streams:
        page = {"object": "list", "data": list(map(_bare, body))} if isinstance(body, list) else _bare(body)
        return {"headers": {"content-type": "application/json"}, "parsed_body": page}
    pieces = [json_bytes(_bare(one)) for one in body]
    if any(isinstance(one, Mapping) and str(one.get(_CLASS)).startswith("ollama.") for one in body[:1]):
        return {"headers": {"content-type": "application/x-ndjson"}, "body": b"".join(b"%s\n" % one for one in pieces)}
    events = [*pieces, b"[DONE]"]
    return {"headers": {"content-type": "text/event-stream"}, "body": b"".join(b"data: %s\n\n" % one for one in events)}


def _bare(value: Any) -> Any:
    return value[_VALUE] if isinstance(value, Mapping) and _VALUE in value else value
