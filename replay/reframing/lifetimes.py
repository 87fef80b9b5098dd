"""Keep what answers say about their validity: a cache entry or a credential lives as long after its answer as it did then.

Else a client that is not given the recorded time finds everything stale in a replay of an old recording, and asks for it
again: a browser for each script that it had in its cache, an SDK for credentials that "are still expired". Nothing is
changed where it would make no difference: where it was stale when it was recorded, or is still valid.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace

from calls.model import Body, Chunk, Exchange, Response, header

_SECOND: Final = 1_000_000_000

_MAX_AGE: Final = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?(\d{1,10})", re.IGNORECASE)
_UNCACHED: Final = re.compile(r"(?:^|[,\s])no-(?:store|cache)\s*(?:$|,)", re.IGNORECASE)

_CACHED_BY_AGE: Final = frozenset((200, 203, 206, 300, 301, 308, 410))
"""Statuses of answers that caches keep without being told for how long: for a tenth of their age (RFC 9111 4.2.2)."""

_LARGEST_CREDENTIALS: Final = 64 << 10

_BODY_HEADERS: Final = frozenset(("content-encoding", "content-digest", "repr-digest", "digest", "content-md5"))
"""Headers with which a body cannot be changed."""

_CREDENTIALS: Final = re.compile(
    rb"\"?\b(?:AccessKeyId|SessionToken|accessKeyId|sessionToken|access_token|accessToken)\b[\">]"
)
_EXPIRY: Final = re.compile(
    rb"(?P<name>\"(?:[eE]xpiration|expires_on|expires_at|expiresOn|expiresAt)\"\s*:\s*\"?|<Expiration>)"
    rb"(?P<value>\d{9,13}(?![\d.])|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
)
"""When credentials of AWS, Azure and others expire: a time in UTC, or seconds or milliseconds since the epoch."""


def with_recorded_lifetimes(exchange: Exchange, now: int) -> Exchange:
    """Return the exchange with an answer that is valid as long as it was; the same one where that changes nothing.

    `now`: nanoseconds since the epoch.
    """
    response = exchange.response
    if response is None or now <= exchange.started_at:
        return exchange
    changed = _with_living_credentials(_with_freshness(response, exchange, now), exchange, now)
    return exchange if changed is response else replace(exchange, response=changed)


def _with_freshness(response: Response, exchange: Exchange, now: int) -> Response:
    if exchange.request.method not in ("GET", "HEAD"):
        return response
    fresh_until = _fresh_until(response)
    if fresh_until is None or not exchange.started_at < fresh_until * _SECOND <= now:
        return response
    later = (now - exchange.started_at) // _SECOND
    headers = tuple(
        (name, _later_date(value, later) if name.lower() in ("date", "expires") else value)
        for name, value in response.headers
    )
    return replace(response, headers=headers)


def _fresh_until(response: Response) -> int | None:
    """Until when a private cache takes the answer for fresh, in seconds since the epoch; None if it does not keep it (RFC 9111 4.2)."""
    control = ", ".join(value for name, value in response.headers if name.lower() == "cache-control")
    expires, modified = header(response.headers, "expires"), header(response.headers, "last-modified")
    if not (control or expires or modified) or _UNCACHED.search(control):
        return None
    if (date := _seconds(header(response.headers, "date"))) is None:
        return None
    age = header(response.headers, "age") or "0"
    passed = int(age) if age.isascii() and age.isdigit() and len(age) < 10 else 0
    if found := _MAX_AGE.search(control):
        return date + int(found[1]) - passed
    if expires is not None:
        until = _seconds(expires)
        return None if until is None else until - passed
    modified_at = _seconds(modified) if response.status in _CACHED_BY_AGE else None
    return None if modified_at is None else date + max(date - modified_at, 0) // 10 - passed


def _with_living_credentials(response: Response, exchange: Exchange, now: int) -> Response:
    data = response.body.data
    if len(data) > _LARGEST_CREDENTIALS or any(name.lower() in _BODY_HEADERS for name, _ in response.headers):
        return response
    # Most answers are of models, in which these letters are found 19 times as fast as the expressions.
    if b"xpir" not in data or not _EXPIRY.search(data) or not _CREDENTIALS.search(data):
        return response
    then = exchange.started_at

    def living(found: re.Match[bytes]) -> bytes:
        return found["name"] + _later_expiry(found["value"], then, now)

    changed = _EXPIRY.sub(living, data)
    if changed == data:
        return response
    # Times have as many characters as before, except after the year 2286.
    chunk = Chunk(response.body.chunks[-1].at if response.body.chunks else 0, 0, len(changed))
    return replace(response, body=Body(data=changed, chunks=(chunk,), size=len(changed)))


def _later_expiry(value: bytes, then: int, now: int) -> bytes:
    if b"T" in value:
        try:
            expires = datetime.fromisoformat(value.decode()).replace(tzinfo=UTC)
        except ValueError:
            return value
        if not then < expires.timestamp() * _SECOND <= now:
            return value
        return f"{expires + timedelta(seconds=(now - then) // _SECOND):%Y-%m-%dT%H:%M:%S}".encode()
    unit = 1_000_000 if len(value) > 11 else _SECOND
    if not then < int(value) * unit <= now:
        return value
    return b"%d" % (int(value) + (now - then) // unit)


def _seconds(date: str | None) -> int | None:
    """The seconds since the epoch of a date in a header; None if it is none."""
    if date is None:
        return None
    # Imported with the first date: it takes a while, and few answers are kept by caches.
    from email.utils import parsedate_to_datetime

    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, OverflowError):
        return None


def _later_date(date: str, seconds: int) -> str:
    from email.utils import format_datetime

    at = _seconds(date)
    return date if at is None else format_datetime(datetime.fromtimestamp(at + seconds, UTC), usegmt=True)
