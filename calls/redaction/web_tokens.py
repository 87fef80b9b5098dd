"""Keep the header and the claims of a JSON web token in an answer, so that a client can go on with it in a replay.

A client decodes the token that it was given: it reads who logged in and until when. What makes the token a credential is its
signature (RFC 7515), without which nobody accepts it. So the signature becomes the placeholder, and the claims are searched
for secrets as any JSON is. Nobody decodes the tokens of a request in a replay, so those are replaced as a whole, and so is
every token of another form: encrypted, unsigned, too long, or with other contents than claims.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Final

import msgspec

from calls.placeholder import make_placeholder
from calls.redaction.body import apply_edits
from calls.redaction.declared import locate_leaves
from calls.redaction.scanning.layered_scanner import LayeredScanner
from calls.redaction.scanning.scanner import MAX_BLOCK, Edit, RuleTable

SESSION_CLAIMS: Final = frozenset(("jti", "sid", "session_id", "session_state", "rh", "aio", "uti"))
"""Claims that name a token or a session (OpenID Connect, Keycloak, Microsoft): no client needs them, some services take them."""

_SHAPE: Final = re.compile(rb"(eyJ[A-Za-z0-9_-]+)\.(eyJ[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{22,})")


class AnswerRuleTable(RuleTable):
    """The rules for answers. Another table of the same rules shares the compiled expressions (`compile_expression`)."""

    def make_placeholder(self, secret: bytes, kind: str, key: bytes) -> bytes:
        if secret.startswith(b"eyJ"):
            return self._web_token_placeholder(secret, kind, key) or make_placeholder(secret, kind, key)
        return make_placeholder(secret, kind, key)

    def _web_token_placeholder(self, token: bytes, kind: str, key: bytes) -> bytes | None:
        shape = _SHAPE.fullmatch(token)
        if shape is None or len(token) >= MAX_BLOCK:
            return None
        header, claims = _decode_object(shape[1]), _decode_object(shape[2])
        if header is None or claims is None or not _is_signed(header[1]):
            return None
        clean_header, clean_claims = (self._without_secrets(data, key) for data, _ in (header, claims))
        whole = make_placeholder(token, kind, key)
        # The last letter has bits that belong to no byte, and strict decoders demand zeros.
        signature = whole[: len(shape[3]) - 1] + b"A"
        return b".".join((_encode(clean_header), _encode(clean_claims), signature))

    def _without_secrets(self, data: bytes, key: bytes) -> bytes:
        data = apply_edits(data, 0, _session_edits(data, key))
        edits = LayeredScanner(self, key, is_json=True).feed(data, last=True)
        return apply_edits(data, 0, edits)


def _decode_object(part: bytes) -> tuple[bytes, dict[str, object]] | None:
    """Return the JSON object in a part of a token, as bytes and parsed; None if it has no such object."""
    try:
        data = urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        found = msgspec.json.decode(data)
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return (data, found) if isinstance(found, dict) and _encode(data) == part else None


def _is_signed(header: dict[str, object]) -> bool:
    """Return whether a token is of no use without its last part: signed, not encrypted, with contents in the second."""
    algorithm = header.get("alg")
    return isinstance(algorithm, str) and algorithm.lower() != "none" and not {"enc", "zip", "b64"} & header.keys()


def _session_edits(data: bytes, key: bytes) -> Iterator[Edit]:
    for location, start, stop in locate_leaves(data):
        if location[0] in SESSION_CLAIMS and data[start : start + 1] == b'"':
            yield Edit(start + 1, make_placeholder(data[start + 1 : stop - 1], "J", key))


def _encode(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
