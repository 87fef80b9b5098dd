"""Sessions of the web page: a browser shows a token once and holds the id of a session from then on.

Sessions are in memory and end with the store server. What a session may do is what its token allows at each request, so it
ends when its token is revoked or expires. Ids and codes have 256 random bits; only their digests are kept.
"""

import hashlib
import secrets
from typing import Final

import msgspec

LIFETIME: Final = 12 * 3600
"""Seconds after which a session ends."""

CODE_LIFETIME: Final = 300
"""Seconds for which a login code is valid."""

MOST_SESSIONS: Final = 1000
MOST_CODES: Final = 100

_SECOND: Final = 10**9


class TokenReference(msgspec.Struct, frozen=True):
    """Which token a session was opened with: one that allows everything, by its name, or an API token, by its digest."""

    full_name: str | None = None
    digest: str | None = None


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One session."""

    token: TokenReference
    expires_at: int
    """Nanoseconds since the Unix epoch."""


class Sessions:
    """The open sessions of one store server, and the codes that each open one. `now` is wall time in nanoseconds."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._codes: dict[str, Session] = {}

    def open(self, token: TokenReference, now: int) -> str:
        """Open a session; return its id, for the cookie. The oldest session ends where there are too many."""
        return _add(self._sessions, token, now, LIFETIME, MOST_SESSIONS)

    def find(self, session: str, now: int) -> Session | None:
        """Return a session that is open."""
        found = self._sessions.get(_digest(session))
        return found if found is not None and now < found.expires_at else None

    def close(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(session), None)

    def create_code(self, token: TokenReference, now: int) -> str:
        """Return a code that opens one session, once and soon."""
        return _add(self._codes, token, now, CODE_LIFETIME, MOST_CODES)

    def redeem_code(self, code: str, now: int) -> TokenReference | None:
        """Return the token of a code, which is invalid from then on; None if it is not valid."""
        found = self._codes.pop(_digest(code), None)
        return found.token if found is not None and now < found.expires_at else None


def _add(entries: dict[str, Session], token: TokenReference, now: int, lifetime: int, limit: int) -> str:
    for name in [name for name, entry in entries.items() if entry.expires_at <= now]:
        del entries[name]
    while len(entries) >= limit:
        del entries[next(iter(entries))]
    new = secrets.token_urlsafe(32)
    entries[_digest(new)] = Session(token=token, expires_at=now + lifetime * _SECOND)
    return new


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
