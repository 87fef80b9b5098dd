"""Convert recordings with VCR's structure but other names: ExVCR, ReqCassette, nock, llama-stack."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Any, Final

from store.foreign.contents import BrokenInteraction
from store.foreign.parts import json_bytes

_TERM: Final = b"\x83m"
"""The beginning of a binary in Erlang's external term format; its length follows in four bytes."""


def as_vcr(value: Any) -> Any:
    """Convert an interaction of these recorders to VCR's names; return any other value as it is."""
    match value:
        case {"scope": str(scope), "method": _, "path": str(path)}:
            return _nock(scope, path, value)
        case {"request": {"url": _} as raw_request, "response": {"type": str(), "body": _} as raw_response}:
            return _exvcr(raw_request, raw_response)
        case {
            "request": {"url": str(), "endpoint": str()} as raw_request,
            "response": {"is_streaming": bool()} as raw_response,
        }:
            return _llama_stack(raw_request, raw_response)
        case {"request": Mapping() as raw_request, "response": {"body_type": str()} as raw_response}:
            return {**value, "request": _with_body(_with_query(raw_request)), "response": _with_body(raw_response)}
        case _:
            return value


# -- ExVCR (Elixir)


def _exvcr(raw_request: Mapping[str, Any], raw_response: Mapping[str, Any]) -> Any:
    if raw_response["type"] != "ok":
        raise BrokenInteraction(f"it has no response ({raw_response['body']!r:.80})")
    body = _erlang_binary(raw_response["body"]) if raw_response.get("binary") is True else raw_response["body"]
    request = {**raw_request, "body": raw_request.get("body") or raw_request.get("request_body")}
    return {"request": request, "response": {**raw_response, "body": body}}


def _erlang_binary(text: Any) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (NotBase64, ValueError, TypeError):
        data = b""
    if not data.startswith(_TERM) or int.from_bytes(data[2:6]) != len(data) - 6:
        raise BrokenInteraction("its response's body is not a valid Erlang binary")
    return data[6:]


# -- ReqCassette (Elixir)


def _with_query(raw_request: Mapping[str, Any]) -> Mapping[str, Any]:
    query = raw_request.get("query_string")
    return {**raw_request, "uri": f"{raw_request.get('uri')}?{query}"} if query else raw_request


def _with_body(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    match raw.get("body_type"):
        case "json":
            return {**raw, "parsed_body": raw.get("body_json")}
        case "blob":
            return {**raw, "body": {"base64_string": raw.get("body_blob")}}
        case _:
            return raw


# -- nock (Node.js)


def _nock(scope: str, path: str, raw: Mapping[str, Any]) -> Any:
    headers = raw.get("rawHeaders", raw.get("headers"))
    if isinstance(headers, list) and all(isinstance(one, str) for one in headers):
        # Names and values alternate, as in Node.js.
        headers = [list(pair) for pair in zip(headers[::2], headers[1::2], strict=False)]
    return {
        "request": {
            "method": raw["method"],
            "uri": scope.rstrip("/") + path,
            "headers": raw.get("reqheaders"),
            **_nock_body(raw.get("body")),
        },
        "response": {
            "status": raw.get("status"),
            "headers": headers,
            **_nock_body(raw.get("response"), binary=raw.get("responseIsBinary") is True),
        },
    }


def _nock_body(value: Any, *, binary: bool = False) -> dict[str, Any]:
    """Convert a body: a list of hexadecimal if it was compressed, one if it was binary, parsed if it was JSON."""
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


# -- llama-stack, which records the arguments and results of SDKs: objects, each with the name of its class

_CLASS: Final = "__type__"
_VALUE: Final = "__data__"


def _llama_stack(raw_request: Mapping[str, Any], raw_response: Mapping[str, Any]) -> Any:
    if raw_response.get("is_exception") is True:
        raise BrokenInteraction("its SDK raised an exception, and the response was not kept")
    endpoint = raw_request["endpoint"]
    # Where both the base URL and the path have the version, the SDK joins them with one.
    url = raw_request["url"].replace(f"/v1{endpoint}", endpoint) if endpoint.startswith("/v1/") else raw_request["url"]
    lists = isinstance(raw_response.get("body"), list) and not raw_response["is_streaming"]
    # It records POST for every method.
    how = {"method": "GET"} if lists else {"method": raw_request.get("method"), "parsed_body": raw_request.get("body")}
    headers = {**({} if lists else {"content-type": "application/json"}), **(raw_request.get("headers") or {})}
    return {
        "request": {"uri": url, "headers": headers, **how},
        "response": {
            "status": 200,
            **_llama_stack_response(raw_response.get("body"), streams=raw_response["is_streaming"]),
        },
    }


def _llama_stack_response(body: Any, *, streams: bool) -> dict[str, Any]:
    """Rebuild the server's response from the SDK's result: events, Ollama's lines, a list in its page, or one value."""
    if not isinstance(body, list) or not streams:
        page = (
            {"object": "list", "data": list(map(_unwrapped_value, body))}
            if isinstance(body, list)
            else _unwrapped_value(body)
        )
        return {"headers": {"content-type": "application/json"}, "parsed_body": page}
    pieces = [json_bytes(_unwrapped_value(one)) for one in body]
    if any(isinstance(one, Mapping) and str(one.get(_CLASS)).startswith("ollama.") for one in body[:1]):
        return {"headers": {"content-type": "application/x-ndjson"}, "body": b"".join(b"%s\n" % one for one in pieces)}
    events = [*pieces, b"[DONE]"]
    return {"headers": {"content-type": "text/event-stream"}, "body": b"".join(b"data: %s\n\n" % one for one in events)}


def _unwrapped_value(value: Any) -> Any:
    return value[_VALUE] if isinstance(value, Mapping) and _VALUE in value else value
