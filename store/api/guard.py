"""Check tokens and scopes, and protect a server without tokens from web pages that its user visits.

A web page can make a browser send requests to our loopback port, by DNS rebinding (a foreign name in `Host`) or across
origins (`Origin`, `Sec-Fetch-Site`). Such requests, and requests without a token, are refused before any route is looked up
and before any part of the body is read.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calls.project_runs import PROJECT_NAME
from calls.redaction.call import Clean
from store.access.api_tokens import ApiToken, ApiTokens, TokenFileError
from store.access.audit_log import AuditEntry, AuditLog
from store.access.grants import FULL_GRANT, GRANT, STILL_GRANTED, Grant, full_grant, token_grant
from store.api.gate import MatchedRoute, match_route
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
    """The accepted bearer tokens. Those that allow everything are kept as digests; where there are none, no token is required."""

    def __init__(
        self, full_tokens: Mapping[str, str], file: Path | None = None, api_tokens: ApiTokens | None = None
    ) -> None:
        """`full_tokens` are the tokens that allow everything, by their names; `file` holds one of them."""
        self._full = {name: _digest(token) for name, token in full_tokens.items()}
        self._file = file
        self._api_tokens = api_tokens

    @property
    def is_required(self) -> bool:
        """Whether requests need a token."""
        return bool(self._full)

    def grant(self, headers: Headers, now: int) -> Grant | Problem:
        """Return what a request may do, or the problem to answer with."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if (name := self._full_token_name(token)) is not None:
                return full_grant(name)
            try:
                found = self._api_tokens.find(token) if self._api_tokens else None
            except TokenFileError as error:
                return Problem(503, "tokens_unreadable", str(error), headers={"retry-after": "5"})
            if found is not None:
                return self._grant_of(found, now)
        if not self.is_required:
            return FULL_GRANT
        place = f" and {self._file} holds it" if self._file else ""
        detail = (
            f"the API requires its token: send `Authorization: Bearer TOKEN`; `playhead token` prints it{place}."
            " The recording token of a proxy URL is not accepted here"
        )
        return _unauthorized_problem("token_required", detail)

    def _grant_of(self, token: ApiToken, now: int) -> Grant | Problem:
        match token.state(now):
            case "expired":
                detail = f"the token {token.name} has expired; create another with `playhead token create`"
                return _unauthorized_problem("token_expired", detail)
            case "revoked":
                return _unauthorized_problem("token_revoked", f"the token {token.name} was revoked; use another one")
            case "active":
                return token_grant(token)

    def _full_token_name(self, token: str) -> str | None:
        given = _digest(token)
        # Compare with all of them, so that the time does not reveal which one came close.
        found = [name for name, known in self._full.items() if hmac.compare_digest(given, known)]
        return found[0] if found else None


def _unnoted_problem() -> Problem:
    detail = "the request cannot be noted in the audit log, because the database does not answer; try again later"
    return Problem(503, "database_unavailable", detail, headers={"retry-after": "5"})


def _unauthorized_problem(name: str, detail: str) -> Problem:
    return Problem(401, name, detail, headers={"www-authenticate": "Bearer"})


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("latin-1", "replace")).digest()


class Guard:
    """ASGI middleware that lets a request pass only if its token allows it, and notes it in the audit log.

    It also refuses requests from foreign web pages, and forbids caching and framing of every response.
    """

    def __init__(
        self, app: ASGIApp, *, tokens: Tokens, audit: AuditLog | None, clean: Clean, now: Callable[[], int]
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._audit = audit
        self._clean = clean
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request to the app, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        headers, path = Headers(scope=scope), scope["path"]
        matched = match_route(scope["method"], path)
        granted = self._refusal(headers, path) or self._admit(scope, headers, matched)
        entries = self._audit_entries(scope, granted, matched) if isinstance(granted, Grant) and matched else ()
        refusal = granted if isinstance(granted, Problem) else self._refusal_by_scope(granted, path, matched)
        if entries and self._audit is not None and self._audit.is_full:
            # What cannot be noted is refused, whatever the answer would be: the entries that wait must not grow without end.
            refusal, entries = _unnoted_problem(), ()

        is_noted = False

        def note(status: int) -> None:
            nonlocal is_noted
            is_noted = True
            for entry in entries:
                if self._audit is not None:
                    self._audit.add(entry._replace(status=status))

        async def send_with_safe_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                safe = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    safe.setdefault(name, value)
                note(message["status"])
            await send(message)

        if refusal is not None:
            await refusal.response(path)(scope, receive, send_with_safe_headers)
            return
        scope[GRANT] = granted
        scope[STILL_GRANTED] = lambda: self._admit(scope, headers, matched) == granted
        try:
            await self._app(scope, receive, send_with_safe_headers)
        except BaseException:
            # The answer to this error is made outside of this middleware, or is not made at all.
            if not is_noted:
                note(500)
            raise

    def _admit(self, scope: Scope, headers: Headers, matched: MatchedRoute | None) -> Grant | Problem:
        """Return what the request may do in the project that it names, or the problem to answer with."""
        if scope["path"] in TOKENLESS:
            return FULL_GRANT
        granted = self._tokens.grant(headers, self._now())
        if isinstance(granted, Problem):
            return granted
        project = QueryParams(scope["query_string"]).get("project")
        if project is not None and not PROJECT_NAME.fullmatch(project):
            detail = f"project={project[:80]!r} is not a name of a project: use 1 to 63 of a-z 0-9 . _ -"
            return Problem(422, "invalid_request", detail)
        found = granted.for_project(project)
        if found is None:
            # The same for a project that does not exist and one that the token may not see.
            return Problem(404, "unknown_project", f"there is no project {project}, or the token may not see it")
        if matched and matched.rule.needs_all_projects and not found.covers_all_projects:
            detail = (
                f"{scope['path']} is about all projects, and the token {found.token} is for {found.allowed_project}"
            )
            return Problem(403, "scope_missing", detail)
        return found

    def _refusal_by_scope(self, grant: Grant, path: str, matched: MatchedRoute | None) -> Problem | None:
        if matched is None:
            return None if grant.allows("admin") else Problem(404, "not_found", f"there is nothing at {path}")
        if (scopes := matched.rule.scopes) and not grant.allows_any(scopes):
            own = ", ".join(grant.scopes) or "none"
            detail = f"the token {grant.token} lacks the scope {' or '.join(scopes)}; it has {own}"
            return Problem(403, "scope_missing", detail)
        return None

    def _audit_entries(self, scope: Scope, grant: Grant, matched: MatchedRoute) -> Sequence[AuditEntry]:
        """Return what to note: an entry for each run, call, exchange or replay that the path names."""
        rule = matched.rule
        if scope["path"] in TOKENLESS or not rule.is_noted(grant):
            return ()
        query = scope["query_string"].decode("latin-1")
        path = self._clean(f"{scope['path']}{'?' if query else ''}{query}")
        subjects: list[str | None] = [self._clean(subject) for subject in matched.subjects] or [None]
        return [AuditEntry(grant.project, grant.token, rule.action or "", subject, path, 0) for subject in subjects]

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
