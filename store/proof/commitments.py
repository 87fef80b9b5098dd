"""Salts of the commitments to an exchange or a gap: 16 random bytes for each of its three parts.

A commitment is an HMAC of a part under its salt. Without the salt nobody can guess a part from its commitment, however few values it
may have, so erasing a part together with its salt leaves nothing of it, and the commitment remains as a link of its chain.
"""

import os
from typing import Final

SALT: Final = 16
"""Bytes of the salt of one part."""

PARTS: Final = 3
"""The head, the request's body (of a gap: its evidence), the response's body."""

_FORGOTTEN: Final = bytes(SALT)


def make_salts() -> bytes:
    """Return new salts for an exchange or a gap."""
    return os.urandom(SALT * PARTS)


def salt_of(salts: bytes, part: int) -> bytes | None:
    """Return the salt of a part; None if it was forgotten."""
    salt = salts[part * SALT : (part + 1) * SALT]
    return None if salt == _FORGOTTEN else salt


def forget_bodies(salts: bytes | None, *, request: bool = True, response: bool = True) -> bytes | None:
    """Return the salts without those of the bodies that are erased; None for an exchange that was stored without a proof."""
    if salts is None:
        return None
    head, *bodies = (salts[part * SALT : (part + 1) * SALT] for part in range(PARTS))
    erased = (request, response)
    return head + b"".join(_FORGOTTEN if is_erased else body for body, is_erased in zip(bodies, erased, strict=True))
