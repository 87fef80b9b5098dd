"""Give exchanges that a fork copies an id of their own, always the same one."""

import hashlib
import re
import uuid

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_id(old: str, name: str) -> str:
    """Another uuidv7 of the same millisecond; the same one whenever an exchange is copied under this name."""
    if not UUID7.fullmatch(old):
        return old
    random = int.from_bytes(hashlib.sha256(f"{name} {old}".encode()).digest()[:10]) & ~(0xF << 76) & ~(0x3 << 62)
    return str(uuid.UUID(int=uuid.UUID(old).int >> 80 << 80 | 0x7 << 76 | 0x2 << 62 | random))
