"""Estimate the memory that an exchange takes, and decide whether a helper process handles it.

A JSON value takes far more memory parsed than as text, by the number of its values rather than by its length. So the
weight of a body is its length, opened, and a surcharge for each separator in it.
"""

from typing import Final

from calls.codec.encoding import TooLarge, Undecodable, decode
from calls.model import Body, Exchange, Headers, header

LARGE: Final = 2 << 20
"""The weight from which an exchange is large. To derive a call from less takes under half a second and 20 MB."""

EVENT: Final = 400
"""The weight of one event beside its bytes: the objects that hold it."""

_VALUE: Final = 24
"""The weight of one JSON value beside its text: a dictionary's entry and a small object."""

_OPENED: Final = LARGE // 2
_GZIP: Final = b"\x1f\x8b"


def weight_of(data: bytes) -> int:
    """The weight of some bytes of a body."""
    return len(data) + _VALUE * (data.count(b",") + data.count(b":"))


def is_large(exchange: Exchange) -> bool:
    """Whether an exchange is large, where all of it is at hand."""
    bodies = [exchange.request.body, *([exchange.response.body] if exchange.response else [])]
    weight = sum(EVENT * len(body.chunks) + weight_of(body.data) for body in bodies)
    return weight > LARGE or opens_large(exchange)


def opens_large(exchange: Exchange) -> bool:
    """Whether a compressed body of the exchange opens to one that is large."""
    bodies: list[tuple[Body, Headers]] = [(exchange.request.body, exchange.request.headers)]
    if exchange.response is not None:
        bodies.append((exchange.response.body, exchange.response.headers))
    return sum(_opened_weight(body.data, header(headers, "content-encoding")) for body, headers in bodies) > LARGE


def _opened_weight(data: bytes, encoding: str | None) -> int:
    if data.startswith(_GZIP):
        encoding = encoding or "gzip"
    if not data or not encoding:
        return 0
    try:
        return weight_of(decode(data, encoding, _OPENED))
    except TooLarge:
        return LARGE + 1
    except Undecodable:
        return 0
