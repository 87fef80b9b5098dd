"""The FastAPI application: every route behind the guard, which checks the token."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from fastapi import Depends, FastAPI

from store.access.api_tokens import ApiTokens
from store.api import helper_answers as aside
from store.api import problems
from store.api.compression import Compression
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps
from store.api.guard import Guard, Tokens
from store.api.limits.request_bodies import RequestBodyLimit
from store.api.parameters import refuse_unknown_parameters
from store.api.routes import (
    audit,
    calls,
    compare,
    events,
    exchanges,
    forks,
    health,
    imports,
    manual,
    proof,
    questions,
    replays,
    runs,
    search,
    stats,
    timelines,
)
from store.api.routes.keep import canaries, erasures, rekey, retention
from store.api.routes.web import facets, page, session
from store.api.spilled_answers import Spill
from store.query.exchange_reader import TooLarge

ROUTERS = (
    ("", health.router),
    ("", manual.router),
    ("", page.router),
    ("/v1", session.router),
    ("/v1", facets.router),
    ("/v1", runs.router),
    ("/v1", compare.router),
    ("/v1", stats.router),
    ("/v1", timelines.router),
    ("/v1", search.router),
    ("/v1", events.router),
    ("/v1", proof.router),
    ("/v1", audit.router),
    ("/v1", calls.router),
    ("/v1", exchanges.router),
    ("/v1", replays.router),
    ("/v1", forks.router),
    ("/v1", imports.router),
    ("/v1", rekey.router),
    ("/v1", questions.router),
    ("/v1", erasures.router),
    ("/v1", retention.router),
    ("/v1", canaries.router),
)


def create_app(
    deps: Deps, tokens: Mapping[str, str], token_file: Path | None = None, api_tokens: ApiTokens | None = None
) -> FastAPI:
    """Create the REST API of one store server. Without tokens, it answers requests to loopback host names only.

    `tokens` allow everything, by their names; `token_file` holds one of them, and the message of a 401 response names it.
    `api_tokens` have projects and scopes.
    """
    app = FastAPI(
        title="Playhead",
        version=version("playhead"),
        dependencies=[Depends(refuse_unknown_parameters)],
        # FastAPI's own pages load scripts from other hosts, and dependencies do not apply to their routes.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    install_routes(app, deps)
    accepted = Tokens(tokens, token_file, api_tokens)
    app.state.tokens = accepted
    # The last one is the first to see a request.
    app.add_middleware(Compression)
    app.add_middleware(Spill, directory=deps.spill_directory)
    app.add_middleware(RequestBodyLimit)
    app.add_middleware(
        Guard,
        tokens=accepted,
        audit=deps.audit,
        clean=deps.clean,
        now=deps.now,
        note_request=deps.signal.note_request,
    )
    return app


def install_routes(app: FastAPI, deps: Deps) -> None:
    """Install the routes and error handlers. A helper process installs the same ones, without guard and tokens."""
    app.state.deps = deps
    for prefix, router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, DeferredRoute), "declare the router with route_class=DeferredRoute"
            # Not by include_router, which builds each route again with the first request.
            app.router.routes.append(route.with_prefix(prefix, app.router.dependencies))
    problems.install_handlers(app)
    app.add_exception_handler(TooLarge, aside.answer_in_helper)
