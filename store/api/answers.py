"""Write responses: JSON that keeps every digit, lists with a cursor, and raw bodies that no browser executes."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from fastapi import Response

_encoder = msgspec.json.Encoder(decimal_format="number")


class Json(Response):
    """JSON. Big integers and decimals keep all their digits."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The content as bytes."""
        return _encoder.encode(content)


def page(items: Iterable[Mapping[str, Any]], following: str | None, **more: Any) -> Json:
    """A list of the contract."""
    return Json({"items": list(items), "next": following} | more)
