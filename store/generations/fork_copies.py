"""Derive ids for copied exchanges."""

import hashlib
import re
import uuid

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def copied_id(old: str, name: str) -> str:
    """Return another uuidv7 of the same millisecond, which depends only on the exchange and the name of the copy."""
    if not UUID7.fullmatch(old):
        return old
    random = int.from_bytes(hashlib.sha256(f"{name} {old}".encode()).digest()[:10]) & ~(0xF << 76) & ~(0x3 << 62)
    return str(uuid.UUID(int=uuid.UUID(old).int >> 80 << 80 | 0x7 << 76 | 0x2 << 62 | random))
