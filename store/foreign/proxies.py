"""Convert the recordings of Azure's test proxy and of Hoverfly.

Azure's proxy keeps JSON bodies as JSON, text as a list of lines, and other bodies as base64; Hoverfly keeps text, or base64
with a flag. Both keep bodies decompressed.
"""

from collections.abc import Mapping
from typing import Any

from calls.model import header
from store.foreign.contents import BrokenInteraction
from store.foreign.parts import checked_header, json_bytes


def as_vcr(value: Any) -> Any:
    """Convert an interaction of these proxies to VCR's names; return any other value as it is."""
    match value:
        case {"RequestUri": str(), "RequestMethod": str()}:
            return _azure(value)
        case {"request": {"destination": _, "path": _} as raw_request, "response": Mapping() as raw_response}:
            return _hoverfly(raw_request, raw_response)
        case _:
            return value


def _azure(raw: Mapping[str, Any]) -> Any:
    raw_request = _azure_body(raw.get("RequestHeaders"), raw.get("RequestBody"))
    length = _first_header(raw.get("RequestHeaders"), "content-length")
    if not raw_request and length.isdecimal() and int(length) > 0:
        raise BrokenInteraction(f"its request's body of {length} bytes was not kept")
    return {
        "request": {
            "method": raw["RequestMethod"],
            "uri": raw["RequestUri"],
            "headers": raw.get("RequestHeaders"),
            **raw_request,
        },
        "response": {
            "status": raw.get("StatusCode"),
            "headers": raw.get("ResponseHeaders"),
            **_azure_body(raw.get("ResponseHeaders"), raw.get("ResponseBody")),
        },
    }


def _azure_body(headers: Any, body: Any) -> dict[str, Any]:
    media = _first_header(headers, "content-type").lower()
    match body:
        case None | "":
            return {}
        case str() if _is_text(media):
            return {"body": body}
        case str():
            return {"body": {"base64_string": body}}
        case [str(), *_] if "json" not in media:
            return {"body": body}
        case _:
            return {"parsed_body": body}


def _is_text(media: str) -> bool:
    words = ("json", "xml", "urlencoded", "javascript", "charset=utf-8")
    return media.startswith("text/") or any(word in media for word in words)


def _first_header(headers: Any, name: str) -> str:
    if not isinstance(headers, Mapping):
        return ""
    pairs = ((str(key), value[0] if isinstance(value, list) and value else value) for key, value in headers.items())
    return header(tuple(checked_header(key, str(value)) for key, value in pairs), name) or ""


def _hoverfly(raw_request: Mapping[str, Any], raw_response: Mapping[str, Any]) -> Any:
    query = raw_request.get("query")
    terms = [f"{name}={_exact_value(value)}" for name, value in query.items()] if isinstance(query, Mapping) else []
    address = f"{_exact_value(raw_request.get('scheme')) or 'http'}://{_exact_value(raw_request['destination'])}{_exact_value(raw_request['path'])}"
    raw = "&".join(terms) or _exact_value(query if not isinstance(query, Mapping) else None)
    body, headers = raw_response.get("body"), raw_request.get("headers")
    header_items = headers.items() if isinstance(headers, Mapping) else ()
    return {
        "request": {
            "method": _exact_value(raw_request.get("method")),
            "uri": f"{address}?{raw}" if raw else address,
            "headers": {name: _exact_value(value) for name, value in header_items},
            "body": _exact_value(raw_request.get("body")),
        },
        "response": {
            "status": raw_response.get("status"),
            "headers": raw_response.get("headers"),
            "body": {"base64_string": body} if raw_response.get("encodedBody") is True else body,
        },
    }


def _exact_value(raw: Any) -> str:
    """Return the value that a matcher requires. Raises BrokenInteraction for a matcher that accepts several values."""
    match raw:
        case None | []:
            return ""
        case str():
            return raw
        case [{"matcher": "exact", "value": str(value)}] | {"exactMatch": str(value)} | [str(value)]:
            return value
        case [{"matcher": "json", "value": str(value)}]:
            return value
        case [{"matcher": "json", "value": value}]:
            return json_bytes(value).decode()
        case _:
            raise BrokenInteraction("it describes its request by patterns, which match many requests")
