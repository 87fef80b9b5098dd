"""Make the replacement of a secret: ASCII, as long as the secret, and the same for the same secret.

A placeholder is `PLAYHEAD_`, one letter that says how the secret was found, and an HMAC of the secret in base32,
stretched to the secret's own byte length: sizes, offsets and chunk boundaries stay true, equal secrets stay equal, but for the
letter where they were found in different ways, and nobody without the key can tell which secret it was. Secrets too short for
that become asterisks.
"""

import hashlib
import hmac
import re

MARK = b"PLAYHEAD_"
SHORTEST = 12
"""Below this many bytes there is no room for the mark, the letter and a digest worth the name."""

PATTERN = r"PLAYHEAD_[A-Z][A-Z2-7]{2,}"
"""What a placeholder looks like, as a regular expression that `re` and RE2 both read."""

_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" * 8
_ONE = re.compile(PATTERN)
_WHOLE = re.compile(rb"(?:%s|\*)+" % PATTERN.encode())


def make(secret: bytes, kind: str, key: bytes) -> bytes:
    """The placeholder for a secret found as `kind`, one capital letter; a placeholder stands for itself."""
    if is_placeholder(secret):
        return secret
    if len(secret) < SHORTEST:
        return b"*" * len(secret)
    seed = hmac.digest(key, b"playhead/placeholder/2:" + secret, "sha256")
    room = len(secret) - len(MARK) - 1
    return MARK + kind.encode() + hashlib.shake_256(seed).digest(room).translate(_BASE32)


def stretch_placeholder(placeholder: bytes, size: int, block: int) -> bytes:
    """The placeholder of a secret that is written in more bytes than it reads, in blocks of at most so many bytes."""
    if not placeholder.startswith(MARK):
        return b"*" * size
    more = min(size, block) - len(placeholder)
    return (placeholder + hashlib.shake_256(placeholder).digest(max(0, more)).translate(_BASE32)).ljust(size, b"*")


def is_placeholder(value: bytes) -> bool:
    """Whether this is nothing but what `make` made, so that it must pass unchanged."""
    return value[:1] in (b"P", b"*") and _WHOLE.fullmatch(value) is not None


def fold(text: str) -> str:
    """The text with each placeholder as the ordinal of its first occurrence.

    So a key does not depend on the HMAC key, and a machine with other secrets finds the same recording. Nor on the letter: what
    an answer called `access_token` may be sent back in a member of any name, where only its looks tell what it is.
    """
    if "PLAYHEAD_" not in text:
        return text
    seen: dict[str, int] = {}

    def name(match: re.Match[str]) -> str:
        found = match.group()[len(MARK) + 1 :]
        return f"PLAYHEAD:{seen.setdefault(found, len(seen) + 1)}"

    return _ONE.sub(name, text)
