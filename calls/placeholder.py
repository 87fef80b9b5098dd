"""Make the replacement of a secret: ASCII, as long as the secret, and the same for the same secret.

A placeholder is `PLAYHEAD_`, one letter for how the secret was found, and an HMAC of the secret in base32, stretched to the
secret's length in bytes. So sizes, offsets and chunk boundaries stay correct, equal secrets have equal placeholders (except
for the letter, if they were found in different ways), and the secret cannot be determined without the key. Secrets that
are too short for this become asterisks.

Of a JSON web token in an answer only the signature is replaced like this (`calls.redaction.web_tokens`): the token with that
signature is one placeholder.
"""

import hashlib
import hmac
import re

PREFIX = b"PLAYHEAD_"
MIN_SIZE = 12
"""Secrets of fewer bytes have no room for the prefix, the letter and a useful digest."""

PATTERN = r"PLAYHEAD_[A-Z][A-Z2-7]{2,}"
"""A regular expression for placeholders, valid in `re` and RE2; of a web token it matches the signature only."""

_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" * 8
_SIGNED = r"eyJ[A-Za-z0-9_-]{2,4096}\.[A-Za-z0-9_-]{2,8192}\."
"""Header and claims of a web token, before its signature."""

_PLACEHOLDER = re.compile(PATTERN)
WEB_TOKEN_PLACEHOLDER = re.compile((_SIGNED + PATTERN).encode())
_SIGNED_AT_END = re.compile(_SIGNED + r"\Z")
_MAX_SIGNED = 8192
# A client may escape an asterisk in a URL or a form, as Python's `urlencode` does.
_ONLY_PLACEHOLDERS = re.compile(rb"(?:(?:%s)?%s|\*|%%2[Aa])+" % (_SIGNED.encode(), PATTERN.encode()))


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
    return value[:1] in (b"P", b"*", b"%", b"e") and _ONLY_PLACEHOLDERS.fullmatch(value) is not None


def number_placeholders(text: str) -> str:
    """Replace each placeholder by the number of its first occurrence.

    So a key does not depend on the HMAC key, and a machine with other secrets finds the same recording. Nor does it depend
    on the letter: an `access_token` in an answer may be sent back in a member of any name, and then be found by its form.
    Nor on the claims of a web token: in a recorded request they were replaced too.
    """
    if "PLAYHEAD_" not in text:
        return text
    numbers: dict[str, int] = {}
    pieces: list[str] = []
    at = 0
    for match in _PLACEHOLDER.finditer(text):
        found = match.group()[len(PREFIX) + 1 :]
        pieces += [
            text[at : placeholder_start(text, match.start(), at)],
            f"PLAYHEAD:{numbers.setdefault(found, len(numbers) + 1)}",
        ]
        at = match.end()
    return "".join([*pieces, text[at:]])


def placeholder_start(text: str, at: int, floor: int = 0) -> int:
    """Return where a placeholder begins that matches `PATTERN` at an offset: before a signature is the rest of its token."""
    if text[at - 1 : at] != "." or at <= floor:
        return at
    low = max(floor, at - _MAX_SIGNED)
    found = _SIGNED_AT_END.search(text[low:at])
    return low + found.start() if found else at
