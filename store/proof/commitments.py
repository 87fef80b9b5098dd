"""Salts of the commitments to an exchange, a gap or a run: 16 random bytes for each of its parts.

A commitment is a digest of a part and its salt. Without the salt nobody can guess a part from its commitment, however few values it
may have, so erasing a part together with its salt leaves nothing of it, and the commitment remains as a link of its chain.
"""

import os
from typing import Final

SALT: Final = 16
"""Bytes of the salt of one part."""

PARTS: Final = 3
"""The parts of an exchange: its head, the request's body, the response's body. A gap has a head and evidence, a run a head."""

_ABSENT: Final = bytes(SALT)


def make_salts(*is_used: bool) -> bytes:
    """Return new salts for the parts that there are: the head alone, or as many as are given."""
    if all(is_used):
        return os.urandom(SALT * max(len(is_used), 1))
    return b"".join(os.urandom(SALT) if used else _ABSENT for used in is_used)


def are_salts_of(salts: bytes, *is_used: bool) -> bool:
    """Whether these are salts for such parts and no others."""
    parts = is_used or (True,)
    unused = (salts[part * SALT : (part + 1) * SALT] for part, used in enumerate(parts) if not used)
    return len(salts) == SALT * len(parts) and all(each == _ABSENT for each in unused)


def salt_of(salts: bytes, part: int) -> bytes | None:
    """Return the salt of a part; None if there is no such part."""
    salt = salts[part * SALT : (part + 1) * SALT]
    return None if salt == _ABSENT else salt


def without_bodies(salts: bytes) -> bytes:
    """Return the salts of an exchange without those of its bodies."""
    return salts[:SALT] + bytes(len(salts) - SALT)
