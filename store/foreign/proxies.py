"""Read the recordings of Azure's test proxy and of Hoverfly.

Azure's keeps a body as JSON where it was JSON, as lines where it was text, else as base64; Hoverfly as text, or as base64
where it says so. Both keep bodies decompressed.
"""

from collections.abc import Mapping
from typing import Any

from calls.model import header
from store.foreign.contents import Broken
from store.foreign.parts import field, json_bytes


def as_vcr(value: Any) -> Any:
    """The interaction under VCR's names; anything that is none of theirs as it is."""
    match value:
        case {"RequestUri": str(), "RequestMethod": str()}:
            return _azure(value)
        case {"request": {"destination": _, "path": _} as asked, "response": Mapping() as answered}:
            return _hoverfly(asked, answered)
        case _:
            return value


def _azure(told: Mapping[str, Any]) -> Any:
    asked = _azure_body(told.get("RequestHeaders"), told.get("RequestBody"))
    length = _first(told.get("RequestHeaders"), "content-length")
    if not asked and length.isdecimal() and int(length) > 0:
        raise Broken(f"its request's body of {length} bytes was not kept")
    return {
        "request": {
            "method": told["RequestMethod"],
            "uri": told["RequestUri"],
            "headers": told.get("RequestHeaders"),
            **asked,
        },
        "response": {
            "status": told.get("StatusCode"),
            "headers": told.get("ResponseHeaders"),
            **_azure_body(told.get("ResponseHeaders"), told.get("ResponseBody")),
        },
    }


def _azure_body(headers: Any, body: Any) -> dict[str, Any]:
    media = _first(headers, "content-type").lower()
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


def _first(headers: Any, name: str) -> str:
    if not isinstance(headers, Mapping):
        return ""
    pairs = ((str(key), value[0] if isinstance(value, list) and value else value) for key, value in headers.items())
    return header(tuple(field(key, str(value)) for key, value in pairs), name) or ""


def _hoverfly(asked: Mapping[str, Any], answered: Mapping[str, Any]) -> Any:
    query = asked.get("query")
    terms = [f"{name}={_exact(value)}" for name, value in query.items()] if isinstance(query, Mapping) else []
    address = f"{_exact(asked.get('scheme')) or 'http'}://{_exact(asked['destination'])}{_exact(asked['path'])}"
    told = "&".join(terms) or _exact(query if not isinstance(query, Mapping) else None)
    body, headers = answered.get("body"), asked.get("headers")
    named = headers.items() if isinstance(headers, Mapping) else ()
    return {
        "request": {
            "method": _exact(asked.get("method")),
            "uri": f"{address}?{told}" if told else address,
            "headers": {name: _exact(value) for name, value in named},
            "body": _exact(asked.get("body")),
        },
        "response": {
            "status": answered.get("status"),
            "headers": answered.get("headers"),
            "body": {"base64_string": body} if answered.get("encodedBody") is True else body,
        },
    }


def _exact(told: Any) -> str:
    """The one value that a request had, where it is told by matchers. Raises Broken where several would match."""
    match told:
        case None | []:
            return ""
        case str():
            return told
        case [{"matcher": "exact", "value": str(value)}] | {"exactMatch": str(value)} | [str(value)]:
            return value
        case [{"matcher": "json", "value": str(value)}]:
            return value
        case [{"matcher": "json", "value": value}]:
            return json_bytes(value).decode()
        case _:
            raise Broken("it tells its request by patterns, which many requests fit")
