"""`/v1/session`: log in to the web page with a token, see what it allows, log out."""

from typing import Annotated, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, StringConstraints

from store.access.sessions import CODE_LIFETIME, LIFETIME, TokenReference
from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.guard import Tokens, session_cookie, session_cookie_name
from store.api.problems import Problem
from store.datadir import DataDir
from store.query.rest_shapes import Shape

router = APIRouter(tags=["session"], route_class=DeferredRoute)

type Secret = Annotated[str, StringConstraints(min_length=1, max_length=500)]

CODE_HELP: Final = "this login link was used, is older than 5 minutes, or is of another start of the store server"


class NewSession(BaseModel):
    """What a session is opened with."""

    model_config = ConfigDict(extra="forbid")
    token: Secret | None = None
    """A token of the API."""

    code: Secret | None = None
    """A login code, instead of a token."""


@router.get("/session", summary="What the token of the request allows")
async def get_session(request: Request, deps: TheDeps) -> Response:
    """Its scopes and projects, and what the web page shows of this store server."""
    return JsonResponse(_shape(request, deps))


@router.post("/session", summary="Log in to the web page: set a session cookie", status_code=204)
async def open_session(request: Request, deps: TheDeps, credentials: NewSession) -> Response:
    """With a token or a login code. The cookie is for this server only, is not readable by scripts, and is not the token."""
    tokens, now = _tokens(request), deps.now()
    reference = _reference(tokens, credentials, now)
    if isinstance(reference, Problem):
        raise reference
    session = tokens.sessions.open(reference, now)
    response = Response(status_code=204)
    _set_cookie(request, response, session, LIFETIME)
    return response


@router.delete("/session", summary="Log out of the web page", status_code=204)
async def close_session(request: Request) -> Response:
    """The session of the cookie ends at once."""
    if session := session_cookie(request.headers):
        _tokens(request).sessions.close(session)
    response = Response(status_code=204)
    _set_cookie(request, response, "", 0)
    return response


@router.post("/session/codes", summary="A code that opens one session of the web page", status_code=201)
async def create_code(request: Request, deps: TheDeps) -> Response:
    """With what the token of the request allows. It is valid for 5 minutes, and once; `playhead token --login-url` prints a link
    with one."""
    tokens, now = _tokens(request), deps.now()
    reference = tokens.request_token(request.headers, now)
    if reference is None:
        raise Problem(409, "no_token", "this store server has no tokens, so nobody logs in: open its page")
    return JsonResponse({"code": tokens.sessions.create_code(reference, now), "expires_in": CODE_LIFETIME}, 201)


def _reference(tokens: Tokens, credentials: NewSession, now: int) -> TokenReference | Problem:
    if credentials.token is not None and credentials.code is None:
        return tokens.check(credentials.token.strip(), now)
    if credentials.code is None or credentials.token is not None:
        return Problem(422, "invalid_request", "send either token or code, to log in with")
    reference = tokens.sessions.redeem_code(credentials.code, now)
    if reference is None:
        detail = f"{CODE_HELP}; make another with `playhead token --login-url`, or log in with a token"
        return Problem(401, "code_invalid", detail, headers={"www-authenticate": "Bearer"})
    return reference


def _set_cookie(request: Request, response: Response, value: str, lifetime: int) -> None:
    is_secure = request.url.scheme == "https"
    response.set_cookie(
        session_cookie_name(request.headers.get("host", ""), is_secure=is_secure),
        value,
        max_age=lifetime,
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )


def _tokens(request: Request) -> Tokens:
    tokens: Tokens = request.app.state.tokens
    return tokens


def _shape(request: Request, deps: Deps) -> Shape:
    grant = deps.grant
    return {
        "token": grant.token,
        "scopes": list(grant.scopes),
        "project": grant.project,
        "all_projects": grant.covers_all_projects,
        "needs_token": _tokens(request).is_required,
        "has_cookie": session_cookie(request.headers) is not None,
        "version": request.app.version,
        "mode": deps.mode,
        "proxy": _find_proxy(deps),
        "fork_agent": deps.fork_agent,
    }


def _find_proxy(deps: Deps) -> str | None:
    """Return the address of the proxy of the `up` to which this store server belongs, if it needs no token; None otherwise."""
    if deps.data_directory is None:
        return None
    directory = DataDir(deps.data_directory)
    note = directory.read_notice("up") if directory.up_lock.is_held() else None
    return None if note is None or note.get("asks_for_token") else note.get("proxy")
