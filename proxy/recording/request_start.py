"""Remember what redaction gave for a request head that a client sends again and again."""

from typing import NamedTuple

import msgspec

from calls.redaction.redactor import RedactedHead

type Evidence = tuple[tuple[str, str], ...]


class RedactedStart(NamedTuple):
    """What the requests with one head have in common, redacted. Only the value of Content-Length may differ."""

    named_run: str
    """The run for which this was made, before redaction."""

    run: str
    evidence: Evidence
    actor: str | None
    head: RedactedHead
    """The head of the first of them."""


class HeadMemo(msgspec.Struct):
    """A place for what the recorder knows of a head, kept with the head by whoever recognises it by all of its bytes."""

    start: RedactedStart | None = None
