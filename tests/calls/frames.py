"""Event streams as Amazon sends them."""

import json
from typing import Any

from calls.framing.eventstream import framed as _framed


def framed(event: str, payload: Any) -> bytes:
    """One event with this value as its JSON payload."""
    headers = {":event-type": event, ":content-type": "application/json", ":message-type": "event"}
    return _framed(headers, json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())
