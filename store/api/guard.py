"""Check bearer tokens, and protect a server without tokens from web pages that its user visits.

A browser can be made to send requests to our loopback port, by DNS rebinding (a foreign name in `Host`) or from a
foreign page (`Origin`, `Sec-Fetch-Site`). These, and requests without a token, are refused before any route is looked up
and before anything of a body is read.
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
"""Certificates: for whoever reaches us by whatever name, such as a container."""

OPEN = ("/healthz", "/readyz", *PUBLIC)
"""What an orchestrator asks without a token. It learns nothing of what was recorded."""

SAFE = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


class Tokens:
    """The bearer tokens that are accepted, known by their digests only. None at all: whoever reaches us may ask."""

    def __init__(self, tokens: Sequence[str], file: Path | None = None) -> None:
        self._digests = [_digest(token) for token in tokens]
        self._file = file
        """Where one of them lies, for those who may read it."""

    @property
    def wanted(self) -> bool:
        """Whether a token is asked for."""
        return bool(self._digests)

    def refusal(self, path: str, headers: Headers) -> Problem | None:
        """Why a request may not go on."""
        if path in OPEN or not self.wanted:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._known(token):
            return None
        place = f" and lies in {self._file}" if self._file else ""
        detail = (
            f"the API asks for its token: send `Authorization: Bearer TOKEN`; `playhead token` prints it{place}."
            " What stands in a proxy's URL only records, and opens nothing here"
        )
        return Problem(401, "token_required", detail, headers={"www-authenticate": "Bearer"})

    def _known(self, token: str) -> bool:
        given = _digest(token)
        # All are compared, so that the time tells nothing about which one came close.
        return sum(hmac.compare_digest(given, known) for known in self._digests) > 0


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("latin-1", "replace")).digest()


class Guard:
    """ASGI middleware: refuses what a foreign web page can send, and marks every answer as not for caches and frames."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    headers.setdefault(name, value)
            await send(message)

        headers, path = Headers(scope=scope), scope["path"]
        refusal = self._refusal(headers, path) or self._tokens.refusal(path, headers)
        await (self._app if refusal is None else refusal.response(path))(scope, receive, marked)

    def _refusal(self, headers: Headers, path: str) -> Problem | None:
        # With tokens asked for, a foreign page has none to send; and the store server may have any name.
        named = is_loopback(_hostname(headers.get("host", ""))) or path in PUBLIC
        if not self._tokens.wanted and not named:
            detail = (
                f"this store server has no token and so answers to loopback names only, not to {headers.get('host')!r}"
            )
            return Problem(403, "foreign_host", f"{detail}; ask http://127.0.0.1, or start it with a token")
        if _foreign(headers):
            return Problem(403, "foreign_origin", "the request comes from another web site; that is not allowed")
        return None


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _foreign(headers: Headers) -> bool:
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
