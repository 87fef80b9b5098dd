"""HTTP Archive 1.2 as a JSON schema, written down from the specification (W3C draft of 2012-08-14)."""

from typing import Any

_TEXT = {"type": "string"}
_SIZE = {"type": "integer", "minimum": -1}
_MILLISECONDS = {"type": "number", "minimum": -1}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    # "Custom fields and elements must start with an underscore."
    members = {**required, **optional, "comment": _TEXT}
    return {
        "type": "object",
        "required": sorted(required),
        "properties": members,
        "patternProperties": {"^_": {}},
        "additionalProperties": False,
    }


_PAIRS = {"type": "array", "items": _object({"name": _TEXT, "value": _TEXT})}
_COOKIES = {"type": "array", "items": {"type": "object", "required": ["name", "value"]}}
_BOTH: dict[str, Any] = {
    "httpVersion": _TEXT,
    "cookies": _COOKIES,
    "headers": _PAIRS,
    "headersSize": _SIZE,
    "bodySize": _SIZE,
}
_REQUEST = _object(
    {"method": _TEXT, "url": {"type": "string", "format": "uri"}, "queryString": _PAIRS, **_BOTH},
    postData=_object({"mimeType": _TEXT, "text": _TEXT}, params=_PAIRS),
)
_CONTENT = _object({"size": {"type": "integer"}, "mimeType": _TEXT}, text=_TEXT, encoding=_TEXT, compression=_SIZE)
_RESPONSE = _object(
    {"status": {"type": "integer"}, "statusText": _TEXT, "content": _CONTENT, "redirectURL": _TEXT, **_BOTH}
)
_TIMINGS = _object(
    dict.fromkeys(("send", "wait", "receive"), _MILLISECONDS),
    **dict.fromkeys(("blocked", "dns", "connect", "ssl"), _MILLISECONDS),
)
_ENTRY = _object(
    {
        "startedDateTime": {
            "type": "string",
            "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$",
        },
        "time": {"type": "number", "minimum": 0},
        "request": _REQUEST,
        "response": _RESPONSE,
        "cache": {"type": "object"},
        "timings": _TIMINGS,
    },
    pageref=_TEXT,
    serverIPAddress=_TEXT,
    connection=_TEXT,
)
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        {
            "log": _object(
                {
                    "version": {"const": "1.2"},
                    "creator": _object({"name": _TEXT, "version": _TEXT}),
                    "entries": {"type": "array", "items": _ENTRY},
                },
                browser=_object({"name": _TEXT, "version": _TEXT}),
                pages={"type": "array"},
            )
        }
    ),
}
