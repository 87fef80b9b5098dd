"""Write JSON responses that keep every digit, and lists with a cursor."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from fastapi import Response

_encoder = msgspec.json.Encoder(decimal_format="number")


def encode_json(value: Any) -> bytes:
    """Encode a value. Large integers and decimals keep all their digits."""
    return _encoder.encode(value)


class JsonResponse(Response):
    """A JSON response. Large integers and decimals keep all their digits."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return encode_json(content)


def page_response(items: Iterable[Mapping[str, Any]], following: str | None, **more: Any) -> JsonResponse:
    """Return one page of a list; `following` is the cursor of the next page."""
    return JsonResponse({"items": list(items), "next": following} | more)
