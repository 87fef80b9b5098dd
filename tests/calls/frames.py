"""Event streams as Amazon sends them."""

from typing import Any

from calls.codec.json import dumps
from calls.framing.eventstream import encode_frame as _framed


def json_frame(event: str, payload: Any) -> bytes:
    """One event with this value as its JSON payload."""
    headers = {":event-type": event, ":content-type": "application/json", ":message-type": "event"}
    return _framed(headers, dumps(payload))
