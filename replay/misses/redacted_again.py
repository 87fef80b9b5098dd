"""Redact the requests of a recording again, by the present rules: what older ones did not find is replaced in every request now.

What was recorded stays as it is. Only the copies that requests are compared with are redacted, with what they are found by.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from msgspec.structs import replace as replace_fields

from calls.keys.key import make_key, raw_digest_of_parts
from calls.keys.profile import Profiles
from calls.model import Exchange, Request
from calls.placeholder import PREFIX
from calls.redaction.redactor import Redactor
from calls.redaction.whole_request import redact_recorded_request
from calls.websocket_messages import opening_request
from replay.script import RecordedExchange, head_secrets, session_place
from store.database.blobs import CorruptData
from store.database.rows import body_digest

MAX_WITH_SECRETS: Final = 16 << 20
"""Maximum bytes of bodies with secrets in them that are redacted again: 1 MB takes half a second, one without secrets 2 ms."""

_PER_REQUEST: Final = 512
"""What a request with secrets counts besides its body: a short one takes 0.3 ms."""


def redact_entries(
    entries: Sequence[RecordedExchange], redactor: Redactor, profiles: Profiles
) -> tuple[list[RecordedExchange], int, int]:
    """Return the exchanges with their requests redacted again, how many were considered before too many had secrets, and
    the bytes of the new bodies.

    An exchange in which that changes nothing is returned itself.
    """
    found: list[RecordedExchange] = []
    budget, body_bytes = MAX_WITH_SECRETS, 0
    for entry in entries:
        if budget < 0:
            break
        recorded = _recorded_request(entry)
        found.append(entry if recorded is None else redact_entry(entry, recorded, redactor, profiles))
        if recorded is None:
            continue
        is_changed, size = found[-1] is not entry, len(recorded.body.data)
        body_bytes += size if is_changed else 0
        budget -= size + _PER_REQUEST if is_changed or PREFIX in recorded.body.data else 0
    return [*found, *entries[len(found) :]], len(found), body_bytes


def _recorded_request(entry: RecordedExchange) -> Request | None:
    try:
        return entry.summary.load_exchange().request
    except CorruptData:
        return None


def redact_entry(
    entry: RecordedExchange, recorded: Request, redactor: Redactor, profiles: Profiles
) -> RecordedExchange:
    """Return an exchange with its recorded request redacted again; the exchange itself if that changes nothing."""
    request = redact_recorded_request(recorded, redactor)
    if request == recorded:
        return entry
    opening = opening_request(request)
    key = make_key(opening, profiles)
    digest = body_digest(opening.body.data)
    return replace(
        entry,
        key=key.key,
        raw=raw_digest_of_parts(opening.method, opening.url, opening.headers, digest),
        session=session_place(opening.headers),
        secrets=head_secrets(opening.url, opening.headers),
        is_telemetry=key.profile in profiles.telemetry_profiles,
        summary=entry.summary._replace(
            url=opening.url,
            headers=opening.headers,
            body_digest=digest,
            load_exchange=partial(_load_with_request, entry.summary.load_exchange, request),
        ),
    )


def _load_with_request(load: Callable[[], Exchange], request: Request) -> Exchange:
    return replace_fields(load(), request=request)
