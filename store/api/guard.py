"""Check tokens, sessions and scopes, and protect the server from web pages that its user visits.

A web page can make a browser send requests to our loopback port, by DNS rebinding (a foreign name in `Host`) or across
origins (`Origin`, `Sec-Fetch-Site`). Such requests, and requests without a token, are refused before any route is looked up
and before any part of the body is read. A link on another site may open the web page, which holds nothing that was recorded.

The session cookie of the web page counts as its token. Browsers add it to requests on their own, so a request that changes
something must prove that our page made it: by its origin, and by a header that only a script of the same origin can set.
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
from store.access.api_tokens import ApiToken, ApiTokens, TokenFileError, has_token_form, token_digest
from store.access.audit_log import AuditEntry, AuditLog
from store.access.grants import FULL_GRANT, GRANT, STILL_GRANTED, Grant, full_grant, token_grant
from store.access.sessions import Sessions, TokenReference
from store.api.gate import MatchedRoute, match_route
from store.api.problems import Problem
from store.page.addresses import is_page_path

PUBLIC = ("/ca.pem", "/ca-bundle.pem")
"""Paths that are served under any host name: containers fetch the certificates by a name of their own."""

TOKENLESS = ("/healthz", "/readyz", *PUBLIC)
"""Paths that need no token. Their answers contain nothing that was recorded."""

SESSION_PATH = "/v1/session"
ASSETS = "/assets/"

PAGE_HEADER = "playhead-page"
"""The header that the web page sets with each request that changes something."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

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
        self.sessions = Sessions()

    @property
    def is_required(self) -> bool:
        """Whether requests need a token."""
        return bool(self._full)

    def grant(self, headers: Headers, now: int) -> Grant | Problem:
        """Return what a request may do, or the problem to answer with."""
        reference = self.request_token(headers, now)
        found = None if reference is None else self._resolve(reference, now)
        if found is not None:
            return found
        if not self.is_required:
            return FULL_GRANT
        place = f" and {self._file} holds it" if self._file else ""
        detail = (
            f"the API requires its token: send `Authorization: Bearer TOKEN`; `playhead token` prints it{place}."
            " The recording token of a proxy URL is not accepted here"
        )
        return _unauthorized_problem("token_required", detail)

    def request_token(self, headers: Headers, now: int) -> TokenReference | None:
        """Return the token of a request: that in its header, or that of its session."""
        token = _bearer_token(headers)
        return self._session_token(headers, now) if token is None else self._reference(token)

    def check(self, token: str, now: int) -> TokenReference | Problem:
        """Return the reference of a token that is accepted, or the problem to answer with."""
        reference = self._reference(token)
        found = self._resolve(reference, now)
        if isinstance(found, Problem):
            return found
        if found is None:
            detail = (
                "this is not a token of this store server: `playhead token` prints one. The recording token of a proxy URL"
                " is not accepted here"
            )
            return _unauthorized_problem("token_required", detail)
        return reference

    def _reference(self, token: str) -> TokenReference:
        if (name := self._full_token_name(token)) is not None:
            return TokenReference(full_name=name)
        return TokenReference(digest=token_digest(token) if has_token_form(token) else None)

    def _session_token(self, headers: Headers, now: int) -> TokenReference | None:
        session = session_cookie(headers)
        found = self.sessions.find(session, now) if session else None
        return None if found is None else found.token

    def _resolve(self, reference: TokenReference, now: int) -> Grant | Problem | None:
        """Return what a token allows now; None if there is no such token."""
        if reference.full_name is not None:
            return full_grant(reference.full_name)
        if reference.digest is None or self._api_tokens is None:
            return None
        try:
            found = self._api_tokens.find_digest(reference.digest)
        except TokenFileError as error:
            return Problem(503, "tokens_unreadable", str(error), headers={"retry-after": "5"})
        return None if found is None else self._grant_of(found, now)

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
        digest = _digest(token)
        # Compare with all of them, so that the time does not reveal which one came close.
        found = [name for name, known in self._full.items() if hmac.compare_digest(digest, known)]
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
        self,
        app: ASGIApp,
        *,
        tokens: Tokens,
        audit: AuditLog | None,
        clean: Clean,
        now: Callable[[], int],
        note_request: Callable[[], None],
    ) -> None:
        """`note_request` is called for each request that passes to what is stored."""
        self._app = app
        self._note_request = note_request
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
        granted = self._refusal(scope["method"], headers, path) or self._admit(scope, headers, matched)
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
        if path.startswith("/v1/"):
            self._note_request()
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
        if is_tokenless(scope["method"], scope["path"]):
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
        if is_tokenless(scope["method"], scope["path"]) or not rule.is_noted(grant):
            return ()
        query = scope["query_string"].decode("latin-1")
        path = self._clean(f"{scope['path']}{'?' if query else ''}{query}")
        subjects: list[str | None] = [self._clean(subject) for subject in matched.subjects] or [None]
        return [AuditEntry(grant.project, grant.token, rule.action or "", subject, path, 0) for subject in subjects]

    def _refusal(self, method: str, headers: Headers, path: str) -> Problem | None:
        # Where a token is required, a foreign page has none to send, and the store server may have any host name.
        is_local_name = is_loopback(_hostname(headers.get("host", ""))) or path in PUBLIC
        if not self._tokens.is_required and not is_local_name:
            detail = f"this store server has no token, so it answers to loopback host names only, not to {headers.get('host')!r}"
            return Problem(403, "foreign_host", f"{detail}; use http://127.0.0.1, or start it with a token")
        if _is_foreign(headers) and not _is_visit(method, headers, path):
            detail = "the request comes from another web site, which is not allowed; send it without a browser"
            return Problem(403, "foreign_origin", detail)
        is_by_cookie = _bearer_token(headers) is None and session_cookie(headers) is not None
        if method not in SAFE_METHODS and is_by_cookie and not _is_from_our_page(headers):
            detail = (
                "a request with the session cookie of the web page must come from that page, and this one does not show"
                f" that it does: send the header {PAGE_HEADER}, and Origin or Sec-Fetch-Site, or use a token"
            )
            return Problem(403, "foreign_origin", detail)
        return None


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_tokenless(method: str, path: str) -> bool:
    """Whether a request needs no token: its answer contains nothing that was recorded."""
    if method in ("GET", "HEAD"):
        return path in TOKENLESS or path.startswith(ASSETS) or is_page_path(path)
    return path in TOKENLESS or (method, path) == ("POST", SESSION_PATH)


def session_cookie_name(host: str, *, is_secure: bool) -> str:
    """Return the name of the session cookie. Browsers share cookies between the ports of a host, so the port is in it."""
    _, _, port = host.rpartition(":")
    return f"{'__Host-' if is_secure else ''}playhead-{port if port.isdecimal() else 'session'}"


def session_cookie(headers: Headers) -> str | None:
    """Return the session id that a browser sent."""
    names = [session_cookie_name(headers.get("host", ""), is_secure=is_secure) for is_secure in (True, False)]
    cookies = dict(one.strip().split("=", 1) for one in headers.get("cookie", "").split(";") if "=" in one)
    return next((cookies[name] for name in names if cookies.get(name)), None)


def _bearer_token(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def _is_visit(method: str, headers: Headers, path: str) -> bool:
    """Whether a browser opens the web page, as from a link on another site."""
    is_navigation = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return method == "GET" and is_navigation and "origin" not in headers and is_page_path(path)


def _is_from_our_page(headers: Headers) -> bool:
    """Whether a request proves that a script of our own page made it. That it is not foreign is known."""
    has_origin = "origin" in headers or headers.get("sec-fetch-site") == "same-origin"
    return has_origin and headers.get(PAGE_HEADER) is not None


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
