"""Replace the secrets in effects, as in everything else that is recorded.

What a program made up itself (random numbers, uuids, tokens) stays: a replay has to return it, and it opens nothing when it is made.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from calls.effects.items import FIRST, Item
from calls.redaction.redactor import Redactor

MADE_UP: Final = ("random.", "secrets.", "uuid.", "os.urandom", "random_source.")
"""Beginnings of the kinds whose results the program made up itself."""


_SECRET_VARIABLE: Final = re.compile(
    r"(?:^|_)(?:token|key|secret|password|passwd|passphrase|pass|pwd|credentials?|auth|jwt|cookie|dsn)s?$",
    re.IGNORECASE,
)
"""Names of variables whose values are secret. A replay takes the present value of these, so that too many do no harm."""


def redact_item(item: Item, redactor: Redactor) -> Item:
    """Return an effect without secrets, with the digest of its content if it has one."""
    if item["kind"].startswith(MADE_UP) or FIRST in item:
        return item
    redaction = _Redaction(redactor)
    name = item.get("args", {}).get("name") if item["kind"] == "os.environ" else None
    clean: Item = {
        member: redaction.redact(value, name if member == "results" else None) for member, value in item.items()
    }
    if item["kind"] == "content":
        clean |= _content_facts(clean)
    if redaction.count:
        clean["redactions"] = redaction.count
    return clean


def _content_facts(item: Mapping[str, Any]) -> dict[str, Any]:
    """Digest the content as it is recorded: a digest of what was redacted could be used to guess it."""
    results = item.get("results") or [""]
    data = _bytes_of(results[0])
    return {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return base64.b64decode(value.get("$bytes", ""))
    return str(value).encode()


class _Redaction:
    """Redacts the values of one effect and counts the secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.count = 0

    def redact(self, value: Any, name: str | None) -> Any:
        """Return a value without secrets; `name` is the variable that it is the value of."""
        match value:
            case str():
                return self._text(value, name)
            case list():
                return [self.redact(one, name) for one in value]
            case {"$bytes": str(text)} if len(value) == 1:
                return self._bytes(text)
            case dict():
                return {key: self.redact(one, name) for key, one in value.items()}
        return value

    def _text(self, text: str, name: str | None) -> str:
        clean = self._redactor.redact_text(text)
        if name is not None and text and clean == text:
            # A value alone does not show that it is a password; beside the name of its variable it does.
            stated = "password" if _SECRET_VARIABLE.search(name) and not text.isdecimal() else name
            document, _, _ = self._redactor.redact_body(msgspec.json.encode({stated: text}), "application/json")
            clean = msgspec.json.decode(document, type=dict[str, str]).get(stated, "")
        self.count += clean != text
        return clean

    def _bytes(self, text: str) -> Any:
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return {"$bytes": ""}
        clean, count, _ = self._redactor.redact_body(data)
        self.count += count
        return {"$bytes": base64.b64encode(clean).decode() if count else text}
