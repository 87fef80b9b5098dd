"""Estimate the memory that an exchange takes, and decide whether a helper process handles it.

Parsed JSON takes far more memory than its text, depending on the number of values rather than on the length. So the weight of
a body is its length, decompressed, and a surcharge for each separator in it.
"""

from typing import Final

from calls.codec.encoding import TooLarge, Undecodable, decode_content
from calls.model import Exchange, Request, Response, header

LARGE_WEIGHT: Final = 2 << 20
"""The weight from which an exchange is large. Deriving a call from less takes under half a second and 20 MB."""

EVENT_WEIGHT: Final = 400
"""The weight of the objects of an event, without its bytes."""

_VALUE_WEIGHT: Final = 24
"""The weight of a JSON value without its text: a dictionary's entry and a small object."""

_MAX_DECODED: Final = LARGE_WEIGHT // 2
_GZIP: Final = b"\x1f\x8b"


_SAMPLED_SIZE: Final = 1 << 16
"""Bytes below which separators are counted in a sample: to count all of them takes as long as to read the bytes from the spool."""

_SAMPLE_STEP: Final = 61
"""A prime number, so that numbers of one width have separators in the sample, too."""


def body_weight(data: bytes) -> int:
    """The weight of bytes of a body, roughly."""
    if _SAMPLE_STEP**2 < len(data) < _SAMPLED_SIZE:
        sample = data[::_SAMPLE_STEP]
        return len(data) + _VALUE_WEIGHT * _SAMPLE_STEP * (sample.count(b",") + sample.count(b":"))
    return len(data) + _VALUE_WEIGHT * (data.count(b",") + data.count(b":"))


def is_large(exchange: Exchange) -> bool:
    """Whether an exchange is large."""
    bodies = [exchange.request.body, *([exchange.response.body] if exchange.response else [])]
    weight = sum(EVENT_WEIGHT * len(body.chunks) + body_weight(body.data) for body in bodies)
    return weight > LARGE_WEIGHT or is_large_decoded(exchange)


def is_large_decoded(exchange: Exchange) -> bool:
    """Whether the compressed bodies of an exchange are large when decompressed."""
    weight = _decoded_weight(exchange.request)
    if exchange.response is not None:
        weight += _decoded_weight(exchange.response)
    return weight > LARGE_WEIGHT


def _decoded_weight(message: Request | Response) -> int:
    data, encoding = message.body.data, header(message.headers, "content-encoding")
    if data.startswith(_GZIP):
        encoding = encoding or "gzip"
    if not data or not encoding:
        return 0
    try:
        return body_weight(decode_content(data, encoding, _MAX_DECODED))
    except TooLarge:
        return LARGE_WEIGHT + 1
    except Undecodable:
        return 0
