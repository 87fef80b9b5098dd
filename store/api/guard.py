"""Check bearer tokens, and protect a server without tokens from web pages that its user visits.

A web page can make a browser send requests to our loopback port, by DNS rebinding (a foreign name in `Host`) or across
origins (`Origin`, `Sec-Fetch-Site`). Such requests, and requests without a token, are refused before any route is looked up
and before any part of the body is read.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.api.problems import Problem

PUBLIC = ("/ca.pem", "/ca-bundle.pem")
"""Paths that are served under any host name: containers fetch the certificates by a name of their own."""

TOKENLESS = ("/healthz", "/readyz", *PUBLIC)
"""Paths that need no token. Their answers contain nothing that was recorded."""

SAFE_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


class Tokens:
    """The accepted bearer tokens, kept as digests. Where there are none, no token is required."""

    def __init__(self, tokens: Sequence[str], file: Path | None = None) -> None:
        self._digests = [_digest(token) for token in tokens]
        self._file = file
        """The file that holds one of them."""

    @property
    def is_required(self) -> bool:
        """Whether requests need a token."""
        return bool(self._digests)

    def refusal(self, path: str, headers: Headers) -> Problem | None:
        """Return the problem to answer with; None for a request that may proceed."""
        if path in TOKENLESS or not self.is_required:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_accepted(token):
            return None
        place = f" and {self._file} holds it" if self._file else ""
        detail = (
            f"the API requires its token: send `Authorization: Bearer TOKEN`; `playhead token` prints it{place}."
            " The recording token of a proxy URL is not accepted here"
        )
        return Problem(401, "token_required", detail, headers={"www-authenticate": "Bearer"})

    def _is_accepted(self, token: str) -> bool:
        given = _digest(token)
        # Compare with all of them, so that the time does not reveal which one came close.
        return sum(hmac.compare_digest(given, known) for known in self._digests) > 0


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("latin-1", "replace")).digest()


class Guard:
    """ASGI middleware that refuses requests from foreign web pages, and forbids caching and framing of every response."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request to the app, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_safe_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers, path = Headers(scope=scope), scope["path"]
        refusal = self._refusal(headers, path) or self._tokens.refusal(path, headers)
        await (self._app if refusal is None else refusal.response(path))(scope, receive, send_with_safe_headers)

    def _refusal(self, headers: Headers, path: str) -> Problem | None:
        # Where a token is required, a foreign page has none to send, and the store server may have any host name.
        named = is_loopback(_hostname(headers.get("host", ""))) or path in PUBLIC
        if not self._tokens.is_required and not named:
            detail = f"this store server has no token, so it answers to loopback host names only, not to {headers.get('host')!r}"
            return Problem(403, "foreign_host", f"{detail}; use http://127.0.0.1, or start it with a token")
        if _is_foreign(headers):
            detail = "the request comes from another web site, which is not allowed; send it without a browser"
            return Problem(403, "foreign_origin", detail)
        return None


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_foreign(headers: Headers) -> bool:
    origin = headers.get("origin")
    if origin is not None and _authority(origin) != headers.get("host", "").lower():
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _authority(origin: str) -> str:
    return origin.partition("://")[2].lower()


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
