"""Make the replacement of a secret: ASCII, as long as the secret, and the same for the same secret.

A placeholder is `PLAYHEAD_`, one letter for how the secret was found, and an HMAC of the secret in base32, stretched to the
secret's length in bytes. So sizes, offsets and chunk boundaries stay correct, equal secrets have equal placeholders (except
for the letter, if they were found in different ways), and the secret cannot be determined without the key. Secrets that
are too short for this become asterisks.
"""

import hashlib
import hmac
import re

PREFIX = b"PLAYHEAD_"
MIN_SIZE = 12
"""Secrets of fewer bytes have no room for the prefix, the letter and a useful digest."""

PATTERN = r"PLAYHEAD_[A-Z][A-Z2-7]{2,}"
"""A regular expression for placeholders, valid in `re` and RE2."""

_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" * 8
_PLACEHOLDER = re.compile(PATTERN)
# A client may escape an asterisk in a URL or a form, as Python's `urlencode` does.
_ONLY_PLACEHOLDERS = re.compile(rb"(?:%s|\*|%%2[Aa])+" % PATTERN.encode())


def make_placeholder(secret: bytes, kind: str, key: bytes) -> bytes:
    """Make the placeholder for a secret found as `kind`, one capital letter. A placeholder is returned unchanged."""
    if is_placeholder(secret):
        return secret
    if len(secret) < MIN_SIZE:
        return b"*" * len(secret)
    seed = hmac.digest(key, b"playhead/placeholder/2:" + secret, "sha256")
    room = len(secret) - len(PREFIX) - 1
    return PREFIX + kind.encode() + hashlib.shake_256(seed).digest(room).translate(_BASE32)


def stretch_placeholder(placeholder: bytes, size: int, block: int) -> bytes:
    """Stretch a placeholder to the size of an escaped secret; beyond `block` bytes it is filled with asterisks."""
    if not placeholder.startswith(PREFIX):
        return b"*" * size
    more = min(size, block) - len(placeholder)
    return (placeholder + hashlib.shake_256(placeholder).digest(max(0, more)).translate(_BASE32)).ljust(size, b"*")


def is_placeholder(value: bytes) -> bool:
    """Return whether a value consists of placeholders only, so that it must pass unchanged."""
    return value[:1] in (b"P", b"*", b"%") and _ONLY_PLACEHOLDERS.fullmatch(value) is not None


def number_placeholders(text: str) -> str:
    """Replace each placeholder by the number of its first occurrence.

    So a key does not depend on the HMAC key, and a machine with other secrets finds the same recording. Nor does it depend
    on the letter: an `access_token` in an answer may be sent back in a member of any name, and then be found by its form.
    """
    if "PLAYHEAD_" not in text:
        return text
    numbers: dict[str, int] = {}

    def name(match: re.Match[str]) -> str:
        found = match.group()[len(PREFIX) + 1 :]
        return f"PLAYHEAD:{numbers.setdefault(found, len(numbers) + 1)}"

    return _PLACEHOLDER.sub(name, text)
